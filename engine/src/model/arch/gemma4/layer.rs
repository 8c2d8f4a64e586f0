//! A layer: attention and feed-forward, normalized on both sides, the layer's own input, a scalar.

use super::experts::SideExperts;
use super::per_layer::PerLayerGate;
use super::plan::{LayerPlan, Plan};
use crate::cache::{
    FullCache, KeyValues, LayerCache, LayerSlot, Positions, RotatingCache, TokenShape, Window,
};
use crate::error::Result;
use crate::mlx::ops::Mask;
use crate::mlx::{Array, Weights};
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, Attention, AttentionOptions, HeadNorms, Mlp, NormSpan, Projections, RmsNorm,
};

/// One layer.
#[derive(Debug)]
pub(in crate::model::arch) struct Layer {
    /// The layer whose columns it attends to; `None` when it has its own.
    pub(in crate::model::arch) source: Option<usize>,
    window: Option<Window>,
    attention_norm: RmsNorm,
    attention: Attention,
    attended_norm: RmsNorm,
    mlp_norm: RmsNorm,
    mlp: Mlp,
    experts: Option<SideExperts>,
    fed_norm: RmsNorm,
    per_layer: Option<PerLayerGate>,
    /// What the layer's result is multiplied by, `[1]`.
    scalar: Array,
}

impl Layer {
    /// Takes the tensors of the layer at `path`.
    pub(in crate::model::arch) fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        (plan, layer): (&Plan, &LayerPlan),
    ) -> Result<Self> {
        let at = |name: &str| format!("{path}.{name}");
        let hidden = plan.hidden;
        let attention = attention(config, weights, &at("self_attn"), (plan, layer))?;
        let mlp = Mlp::load(weights, config, &at("mlp"), (hidden, layer.intermediate))?;
        let per_layer = plan.per_layer.as_ref();
        let per_layer =
            per_layer.map(|inputs| PerLayerGate::load(config, weights, path, (plan, inputs.width)));
        let per_layer = per_layer.transpose()?;
        let experts = plan.experts;
        let experts =
            experts.map(|experts| SideExperts::load(config, weights, path, (plan, experts)));
        let experts = experts.transpose()?;
        let mut norm = |name: &str| RmsNorm::load(weights, &at(name), hidden, plan.epsilon);
        Ok(Self {
            source: layer.source,
            window: layer.window,
            attention_norm: norm("input_layernorm")?,
            attention,
            attended_norm: norm("post_attention_layernorm")?,
            mlp_norm: norm("pre_feedforward_layernorm")?,
            mlp: mlp.with_activation(Activation::GeluTanh),
            experts,
            fed_norm: norm("post_feedforward_layernorm")?,
            per_layer,
            scalar: weights.take_shaped(&at("layer_scalar"), &[1])?,
        })
    }

    /// An empty cache for one row, if the layer has one.
    pub(in crate::model::arch) fn new_cache(&self) -> Option<LayerCache> {
        match (self.source, self.window) {
            (Some(_), _) => None,
            (None, None) => Some(LayerCache::Full(FullCache::new())),
            (None, Some(window)) => Some(LayerCache::Rotating(RotatingCache::new(window))),
        }
    }

    /// What that cache keeps of one token.
    pub(in crate::model::arch) fn token_shape(&self) -> Option<TokenShape> {
        self.source.is_none().then(|| self.attention.token_shape())
    }

    /// Attention of `x` `[B, L, hidden]` over the layer's own columns, which come too.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(in crate::model::arch) fn attend(
        &self,
        x: &Array,
        positions: &Positions,
        cache: LayerSlot<'_>,
    ) -> Result<(Array, KeyValues)> {
        self.attention.forward_showing(&self.attention_norm.forward(x)?, positions, cache)
    }

    /// The same over the columns of its source, under that one's mask.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(in crate::model::arch) fn attend_over(
        &self,
        x: &Array,
        positions: &Positions,
        seen: &KeyValues,
        mask: &Mask,
    ) -> Result<Array> {
        self.attention.forward_over(&self.attention_norm.forward(x)?, positions, seen, mask)
    }

    /// Attention of `x` `[1, L, hidden]` in which its tokens see one another and `before`, all of it
    /// alike. Nothing is written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(in crate::model::arch) fn attend_beside(
        &self,
        x: &Array,
        positions: &Positions,
        before: Option<&KeyValues>,
    ) -> Result<Array> {
        self.attention.forward_beside(&self.attention_norm.forward(x)?, positions, before)
    }

    /// The rest of the layer, for what came in, what it attended to and its own input.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(in crate::model::arch) fn feed(
        &self,
        x: &Array,
        attended: &Array,
        input: Option<&Array>,
    ) -> Result<Array> {
        self.feed_times(&self.scalar, x, attended, input)
    }

    /// The same with `scalar` `[1]` for the layer's own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(in crate::model::arch) fn feed_times(
        &self,
        scalar: &Array,
        x: &Array,
        attended: &Array,
        input: Option<&Array>,
    ) -> Result<Array> {
        let x = x.add(self.attended_norm.forward(attended)?)?;
        let dense = self.mlp.forward(&self.mlp_norm.forward(&x)?)?;
        let fed = match &self.experts {
            Some(experts) => experts.forward(&x, &dense)?,
            None => dense,
        };
        let x = x.add(self.fed_norm.forward(&fed)?)?;
        let x = match (&self.per_layer, input) {
            (Some(gate), Some(input)) => x.add(gate.forward(&x, input)?)?,
            (None, _) | (_, None) => x,
        };
        Ok(x.multiply(scalar)?)
    }
}

/// Attention whose scores are as they come, because queries and keys are normalized.
fn attention(
    config: &ModelConfig,
    weights: &mut Weights,
    path: &str,
    (plan, layer): (&Plan, &LayerPlan),
) -> Result<Attention> {
    let (shape, epsilon) = (layer.attention, plan.epsilon);
    let mut norm = |name: &str| {
        RmsNorm::load(weights, &format!("{path}.{name}"), shape.head_dimension, epsilon)
    };
    let has_keys = layer.projections != Projections::QueriesOnly;
    let norms = HeadNorms {
        query: norm("q_norm")?,
        key: has_keys.then(|| norm("k_norm")).transpose()?,
        value: has_keys.then(|| RmsNorm::unweighted(epsilon)),
        span: NormSpan::EachHead,
    };
    let options = AttentionOptions {
        scale: 1.0,
        head_norms: Some(norms),
        projections: layer.projections,
        ..AttentionOptions::of_rope(layer.rope.clone(), shape.head_dimension)
    };
    Attention::load_with(weights, config, path, shape, options)
}
