//! Decoders of Llama's kind, described by what differs: an architecture writes a [`DecoderSpec`], and
//! it takes the tensors under the names that they all use.

use super::{
    Activation, Attention, AttentionOptions, Block, Decoder, DecoderSizes, Embedding, FeedForward,
    Gating, HeadNorms, Linear, LogitScale, MixtureSpec, Mlp, NormSpan, NormWeights, Projections,
    QueryScale, Residual, RmsNorm, Rope,
};
use crate::cache::Window;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;

/// A decoder as an architecture describes it. [`DecoderSpec::of_config`] is Llama.
#[derive(Debug)]
pub struct DecoderSpec {
    /// Its sizes.
    pub sizes: DecoderSizes,
    /// The layers, from the embedding on.
    pub layers: Vec<LayerSpec>,
    /// Where the norms of attention and of the feed-forward block stand.
    pub norms: NormPlacement,
    /// How the checkpoint stores the weights of all norms.
    pub norm_weights: NormWeights,
    /// How the feed-forward block's input becomes gate and value.
    pub gating: Gating,
    /// What the gate goes through.
    pub activation: Activation,
    /// What makes the logits.
    pub head: HeadSource,
    /// How large they are made.
    pub logit_scale: LogitScale,
    /// Logits stay within plus and minus this, softly.
    pub logit_cap: Option<f32>,
    /// What embedded tokens are multiplied by.
    pub embedding_factor: Option<f32>,
    /// How sums are taken.
    pub residual: Residual,
}

/// One layer.
#[derive(Debug, Clone)]
pub struct LayerSpec {
    /// How far it sees; `None` is everything.
    pub window: Option<Window>,
    /// How its queries and keys turn.
    pub rope: Rope,
    /// What scores are multiplied by; `None` is `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Scores stay within plus and minus this, softly.
    pub score_cap: Option<f32>,
    /// What `q_norm` and `k_norm` are taken over, where there are such norms.
    pub head_norms: Option<NormSpan>,
    /// What turned queries are multiplied by according to their positions.
    pub query_scale: Option<QueryScale>,
    /// How the input becomes queries, keys and values.
    pub projections: Projections,
    /// Whether each query head has a score that no value answers to, in `sinks`.
    pub sinks: bool,
    /// The experts that stand in for the one feed-forward block.
    pub mixture: Option<MixtureSpec>,
}

/// Where the norms of a block stand, and what they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// On the block's input: `input_layernorm`, `post_attention_layernorm`.
    Before,
    /// On its result: `post_attention_layernorm`, `post_feedforward_layernorm`.
    After,
    /// On both: `input_layernorm`, `post_attention_layernorm`, then `pre_feedforward_layernorm`,
    /// `post_feedforward_layernorm`.
    Around,
    /// On both: `input_layernorm`, `post_self_attn_layernorm`, then `post_attention_layernorm`,
    /// `post_mlp_layernorm`.
    Sandwich,
}

impl NormPlacement {
    /// The norms on attention's input and result, then on those of the feed-forward block.
    fn names(self) -> [Option<&'static str>; 4] {
        let (input, attended) = (Some("input_layernorm"), Some("post_attention_layernorm"));
        let fed = Some("post_feedforward_layernorm");
        match self {
            Self::Before => [input, None, attended, None],
            Self::After => [None, attended, None, fed],
            Self::Around => [input, attended, Some("pre_feedforward_layernorm"), fed],
            Self::Sandwich => {
                [input, Some("post_self_attn_layernorm"), attended, Some("post_mlp_layernorm")]
            }
        }
    }
}

/// What makes the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadSource {
    /// The embedding's table.
    Embedding,
    /// `lm_head`.
    Own,
    /// `lm_head` where there is one, else the embedding's table.
    OwnIfPresent,
}

impl LayerSpec {
    /// Full attention with nothing but `rope`.
    pub fn full(rope: Rope) -> Self {
        Self {
            window: None,
            rope,
            scale: None,
            score_cap: None,
            head_norms: None,
            query_scale: None,
            projections: Projections::Separate,
            sinks: false,
            mixture: None,
        }
    }
}

impl DecoderSpec {
    /// Norms before separate projections, nothing scaled; `tied` says whether `tie_word_embeddings` is
    /// on where the config does not say.
    ///
    /// # Errors
    /// `BadModel` when a field is missing or of another kind.
    pub fn of_config(config: &ModelConfig, layers: Vec<LayerSpec>, tied: bool) -> Result<Self> {
        Ok(Self {
            sizes: DecoderSizes::of_config(config)?,
            layers,
            norms: NormPlacement::Before,
            norm_weights: NormWeights::Plain,
            gating: Gating::Separate,
            activation: Activation::Silu,
            head: match config.flag("tie_word_embeddings", tied)? {
                true => HeadSource::Embedding,
                false => HeadSource::Own,
            },
            logit_scale: LogitScale::Plain,
            logit_cap: None,
            embedding_factor: None,
            residual: Residual::Plain,
        })
    }

    /// Takes the decoder's tensors.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(&self, config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
        let (sizes, table) = (self.sizes, self.sizes.table());
        let own_head = match self.head {
            HeadSource::Embedding => {
                weights.discard(|name| name.starts_with("lm_head."));
                false
            }
            HeadSource::Own => true,
            HeadSource::OwnIfPresent => weights.contains("lm_head.weight"),
        };
        let blocks = self.layers.iter().enumerate().map(|(index, layer)| {
            self.block(config, weights, &format!("model.layers.{index}"), layer)
        });
        let blocks = blocks.collect::<Result<_>>()?;
        let embedding = Embedding::load(weights, config, "model.embed_tokens", table)?;
        Ok(Decoder {
            blocks,
            embedding: match self.embedding_factor {
                Some(factor) => embedding.scaled(factor),
                None => embedding,
            },
            norm: self.norm(weights, "model.norm", sizes.attention.hidden)?,
            head: own_head.then(|| Linear::load(weights, config, "lm_head", table)).transpose()?,
            logit_cap: self.logit_cap,
            logit_scale: self.logit_scale,
        })
    }

    fn block(
        &self,
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        layer: &LayerSpec,
    ) -> Result<Block> {
        let shape = self.sizes.attention;
        let at = |name: &str| format!("{path}.{name}");
        let options = self.attention(weights, &at("self_attn"), layer)?;
        let mut norm = |name: Option<&str>| {
            name.map(|name| self.norm(weights, &at(name), shape.hidden)).transpose()
        };
        let [before_attention, after_attention, before_mlp, after_mlp] = self.norms.names();
        let attention_norms = (norm(before_attention)?, norm(after_attention)?);
        let mlp_norms = (norm(before_mlp)?, norm(after_mlp)?);
        Ok(Block {
            window: layer.window,
            attention_norm: attention_norms.0,
            attention: Attention::load_with(weights, config, &at("self_attn"), shape, options)?
                .into(),
            attended_norm: attention_norms.1,
            mlp_norm: mlp_norms.0,
            mlp: self.feed_forward(config, weights, &at("mlp"), layer)?,
            fed_norm: mlp_norms.1,
            residual: self.residual,
        })
    }

    fn feed_forward(
        &self,
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        layer: &LayerSpec,
    ) -> Result<FeedForward> {
        let hidden = self.sizes.attention.hidden;
        let sizes = (hidden, self.sizes.intermediate);
        Ok(match &layer.mixture {
            None => {
                let mlp = Mlp::load_with(weights, config, path, sizes, self.gating)?;
                mlp.with_activation(self.activation).into()
            }
            Some(mixture) => mixture.load(weights, config, path, hidden)?.into(),
        })
    }

    fn attention(
        &self,
        weights: &mut Weights,
        path: &str,
        layer: &LayerSpec,
    ) -> Result<AttentionOptions> {
        let shape = self.sizes.attention;
        let plain = AttentionOptions::of_rope(layer.rope.clone(), shape.head_dimension);
        let mut norm = |name: &str, span, heads: i32| {
            let heads = if span == NormSpan::AllHeads { heads } else { 1 };
            let width = heads * shape.head_dimension;
            self.norm(weights, &format!("{path}.{name}"), width)
        };
        let mut norms = |span| -> Result<HeadNorms> {
            let query = norm("q_norm", span, shape.heads)?;
            let key = Some(norm("k_norm", span, shape.kv_heads)?);
            Ok(HeadNorms { query, key, value: None, span })
        };
        let head_norms = layer.head_norms.map(&mut norms).transpose()?;
        let mut sinks = || weights.take_shaped(&format!("{path}.sinks"), &[shape.heads]);
        Ok(AttentionOptions {
            scale: layer.scale.unwrap_or(plain.scale),
            score_cap: layer.score_cap,
            head_norms,
            sinks: layer.sinks.then(&mut sinks).transpose()?,
            query_scale: layer.query_scale,
            projections: layer.projections,
            ..plain
        })
    }

    fn norm(&self, weights: &mut Weights, path: &str, width: i32) -> Result<RmsNorm> {
        RmsNorm::load_as(self.norm_weights, weights, path, (width, self.sizes.epsilon))
    }
}
