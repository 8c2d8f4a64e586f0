//! Experts beside the feed-forward block that every token goes through: both read what attention left,
//! each through a norm of its own, and their results are normalized before they are added.

use super::plan::{ExpertsPlan, Plan};
use crate::error::Result;
use crate::mlx::{Array, Weights};
use crate::model::ModelConfig;
use crate::model::nn::{Activation, Experts, RmsNorm, Router, RouterSpec, Routing, stack_experts};

/// The experts of one layer.
#[derive(Debug)]
pub(super) struct SideExperts {
    /// Of what the block beside them made.
    dense_norm: RmsNorm,
    router: Router,
    input_norm: RmsNorm,
    experts: Experts,
    result_norm: RmsNorm,
}

impl SideExperts {
    /// Takes the tensors of the layer at `path`. Gate and value of the experts may be in one, as in
    /// Hugging Face's checkpoints.
    pub(super) fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        (plan, experts): (&Plan, ExpertsPlan),
    ) -> Result<Self> {
        let at = |name: &str| format!("{path}.{name}");
        let (hidden, epsilon) = (plan.hidden, plan.epsilon);
        let ExpertsPlan { sizes, chosen } = experts;
        let routing = Routing::SoftmaxOfTopNormed { epsilon };
        let router = RouterSpec { hidden, experts: sizes.experts, chosen, routing };
        let stacks = at("experts.switch_glu");
        stack_experts(weights, (&at("experts"), &stacks), sizes.experts)?;
        let mut norm = |name: &str| RmsNorm::load(weights, &at(name), hidden, epsilon);
        let (dense_norm, input_norm, result_norm) = (
            norm("post_feedforward_layernorm_1")?,
            norm("pre_feedforward_layernorm_2")?,
            norm("post_feedforward_layernorm_2")?,
        );
        Ok(Self {
            dense_norm,
            router: Router::load(weights, config, &at("router"), router)?,
            input_norm,
            experts: Experts::load(weights, config, &stacks, sizes, Activation::GeluTanh)?,
            result_norm,
        })
    }

    /// What the experts make of `x` `[B, L, hidden]`, added to what the block beside them made of it.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn forward(&self, x: &Array, dense: &Array) -> Result<Array> {
        let choice = self.router.forward(x)?;
        let routed = self.experts.forward(&self.input_norm.forward(x)?, &choice)?;
        let dense = self.dense_norm.forward(dense)?;
        Ok(dense.add(self.result_norm.forward(&routed)?)?)
    }
}
