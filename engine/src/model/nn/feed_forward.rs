//! A block's second half: one feed-forward block for all tokens, or a mixture of experts.

use super::{
    Activation, ExpertSizes, Experts, Linear, Mlp, Router, RouterSpec, Routing, stack_experts,
};
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;

/// What follows attention.
#[derive(Debug)]
pub enum FeedForward {
    /// The same for every token.
    Dense(Mlp),
    /// Chosen for each token.
    Mixture(Box<Mixture>),
}

impl FeedForward {
    /// Applies the block to `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Mixture(mixture) => mixture.forward(x),
        }
    }
}

impl From<Mlp> for FeedForward {
    fn from(mlp: Mlp) -> Self {
        Self::Dense(mlp)
    }
}

impl From<Mixture> for FeedForward {
    fn from(mixture: Mixture) -> Self {
        Self::Mixture(Box::new(mixture))
    }
}

/// A mixture of experts as an architecture describes it.
#[derive(Debug, Clone, Copy)]
pub struct MixtureSpec {
    /// Experts to choose from.
    pub experts: i32,
    /// Experts chosen for each token.
    pub chosen: i32,
    /// Width inside one of them.
    pub intermediate: i32,
    /// What their gates go through.
    pub activation: Activation,
    /// How they are chosen.
    pub routing: Routing,
    /// What the router's tensors are called.
    pub router_name: &'static str,
    /// What the stacks of experts are called.
    pub experts_name: &'static str,
    /// The block that every token goes through besides.
    pub shared: Option<SharedSpec>,
}

/// See [`MixtureSpec::shared`].
#[derive(Debug, Clone, Copy)]
pub struct SharedSpec {
    /// What its tensors are called.
    pub name: &'static str,
    /// Its inner width.
    pub intermediate: i32,
    /// What the linear layer is called whose sigmoid scales its result; `None` where nothing does.
    pub gate_name: Option<&'static str>,
}

/// The weighted sum of what the chosen experts make of a token, and of what the shared one does.
#[derive(Debug)]
pub struct Mixture {
    router: Router,
    experts: Experts,
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    mlp: Mlp,
    gate: Option<Linear>,
}

impl MixtureSpec {
    /// Takes the mixture's tensors under `path`, stacked or one expert by one (`path.experts.N`).
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape, or more is to be chosen than there is.
    pub fn load(
        &self,
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        hidden: i32,
    ) -> Result<Mixture> {
        let Self { experts, chosen, intermediate, activation, routing, .. } = *self;
        let at = |name: &str| format!("{path}.{name}");
        let router = RouterSpec { hidden, experts, chosen, routing };
        let router = Router::load(weights, config, &at(self.router_name), router)?;
        let stacks = at(self.experts_name);
        stack_experts(weights, (&at("experts"), &stacks), experts)?;
        let sizes = ExpertSizes { experts, hidden, intermediate };
        let shared = self.shared.map(|shared| shared.load(weights, config, path, hidden));
        let shared = shared.transpose()?;
        let experts = Experts::load(weights, config, &stacks, sizes, activation)?;
        Ok(Mixture { router, experts, shared })
    }
}

impl SharedSpec {
    fn load(
        &self,
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        hidden: i32,
    ) -> Result<Shared> {
        let at = |name: &str| format!("{path}.{name}");
        let sizes = (hidden, self.intermediate);
        let mlp = Mlp::load(weights, config, &at(self.name), sizes)?;
        let gate = self.gate_name.map(|name| Linear::load(weights, config, &at(name), (1, hidden)));
        Ok(Shared { mlp, gate: gate.transpose()? })
    }
}

impl Mixture {
    /// Applies the block to `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let routed = self.experts.forward(x, &self.router.forward(x)?)?;
        match &self.shared {
            Some(shared) => Ok(routed.add(shared.forward(x)?)?),
            None => Ok(routed),
        }
    }
}

impl Shared {
    fn forward(&self, x: &Array) -> Result<Array> {
        let result = self.mlp.forward(x)?;
        match &self.gate {
            Some(gate) => Ok(ops::sigmoid(gate.forward(x)?)?.multiply(result)?),
            None => Ok(result),
        }
    }
}
