//! What an import will write: the config and, for each weight, where it comes from and how.
//!
//! Planning is pure. It claims each tensor of the header by its llama.cpp name and expected shape;
//! a missing tensor, a shape that contradicts the metadata and a tensor that nobody claims are
//! errors, so a plan that exists covers the whole file.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::metadata::{Metadata, required};
use super::{Header, TensorInfo, bad_import, gemma3, llama};
use crate::error::Result;

/// The tensor in which llama.cpp keeps per-frequency RoPE divisors; it becomes configuration.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Everything about the model except its tokenizer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPlan {
    /// The `model_type` that our loader and mlx-lm look up.
    pub model_type: &'static str,
    /// `config.json` without the dtype and the token ids.
    pub config: Map<String, Value>,
    /// The weights, in the file's layer order.
    pub tensors: Vec<TensorPlan>,
}

/// One weight to write.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorPlan {
    /// The Hugging Face name.
    pub name: String,
    /// The tensor it is made from; the shape stays.
    pub source: TensorInfo,
    /// Where its outermost slices go.
    pub row_order: RowOrder,
    /// Added to each value, in `f32`.
    pub shift: f32,
}

/// Where the outermost slices of a tensor go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// They stay.
    AsStored,
    /// From llama.cpp's order (rotation pairs adjacent, `x0 y0 x1 y1 ...` in each head) to Hugging
    /// Face's (`x0 x1 ... y0 y1 ...`). The inverse of `LlamaModel.permute` in llama.cpp's
    /// `convert_hf_to_gguf.py`.
    HalfSplit {
        /// Heads among which the rows are divided.
        heads: u64,
    },
}

impl RowOrder {
    /// The place of stored row `row` of `rows`.
    pub fn target(self, row: u64, rows: u64) -> u64 {
        match self {
            Self::AsStored => row,
            Self::HalfSplit { heads } => {
                let head_rows = rows / heads;
                let (head, within) = (row / head_rows, row % head_rows);
                let (pair, half) = (within / 2, within % 2);
                head * head_rows + half * (head_rows / 2) + pair
            }
        }
    }
}

/// Plans the import of `header`. `rope_factors` are the values of [`ROPE_FACTORS`] if it is there.
pub fn plan(header: &Header, rope_factors: Option<&[f32]>) -> Result<ModelPlan> {
    let key = "general.architecture";
    match required(header.metadata.string(key)?, key)? {
        llama::ARCHITECTURE => llama::plan(header, rope_factors),
        gemma3::ARCHITECTURE => gemma3::plan(header),
        other => Err(bad_import(format!("architecture `{other}` is not supported")).with_hint(
            format!("supported architectures: {}, {}", llama::ARCHITECTURE, gemma3::ARCHITECTURE),
        )),
    }
}

/// The sizes that every decoder states, each at least 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Dimensions {
    pub(super) layers: u64,
    pub(super) hidden: u64,
    pub(super) intermediate: u64,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) head: u64,
    pub(super) vocabulary: u64,
    pub(super) context: u64,
    pub(super) norm_epsilon: f64,
    pub(super) rope_theta: f64,
}

impl Dimensions {
    pub(super) fn read(header: &Header, architecture: &str, rope_theta: f64) -> Result<Self> {
        let keys = Keys { metadata: &header.metadata, architecture };
        let hidden = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let dimensions = Self {
            layers: keys.size("block_count")?,
            hidden,
            intermediate: keys.size("feed_forward_length")?,
            heads,
            kv_heads: keys.optional_size("attention.head_count_kv")?.unwrap_or(heads),
            head: keys.optional_size("attention.key_length")?.unwrap_or(hidden / heads),
            vocabulary: vocabulary(header)?,
            context: keys.size("context_length")?,
            norm_epsilon: keys.required_positive("attention.layer_norm_rms_epsilon")?,
            rope_theta: keys.positive("rope.freq_base")?.unwrap_or(rope_theta),
        };
        dimensions.check(&keys, header.tensors.len() as u64)?;
        Ok(dimensions)
    }

    /// Rows of the query projection.
    pub(super) fn query_rows(&self) -> u64 {
        self.heads * self.head
    }

    /// Rows of the key and of the value projection.
    pub(super) fn kv_rows(&self) -> u64 {
        self.kv_heads * self.head
    }

    /// The part of `config.json` that all decoders share.
    pub(super) fn config(
        &self,
        class: &str,
        model_type: &str,
        activation: (&str, &str),
    ) -> Map<String, Value> {
        let mut config = Map::new();
        let mut put = |key: &str, value: Value| config.insert(key.to_owned(), value);
        put("architectures", vec![class].into());
        put("model_type", model_type.into());
        put(activation.0, activation.1.into());
        put("hidden_size", self.hidden.into());
        put("intermediate_size", self.intermediate.into());
        put("num_hidden_layers", self.layers.into());
        put("num_attention_heads", self.heads.into());
        put("num_key_value_heads", self.kv_heads.into());
        put("head_dim", self.head.into());
        put("vocab_size", self.vocabulary.into());
        put("max_position_embeddings", self.context.into());
        put("rms_norm_eps", self.norm_epsilon.into());
        put("rope_theta", self.rope_theta.into());
        config
    }

    fn check(&self, keys: &Keys<'_>, tensors: u64) -> Result<()> {
        let prefix = keys.architecture;
        if self.layers > tensors {
            return Err(bad_import(format!(
                "`{prefix}.block_count` is {}, but the file has only {tensors} tensors",
                self.layers
            )));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(bad_import(format!(
                "`{prefix}.attention.head_count` {} is not a multiple of `head_count_kv` {}",
                self.heads, self.kv_heads
            )));
        }
        if self.head == 0 || !self.head.is_multiple_of(2) {
            return Err(bad_import(format!(
                "a head size of {} cannot be rotated in pairs",
                self.head
            )));
        }
        for key in ["attention.value_length", "rope.dimension_count"] {
            let size = keys.optional_size(key)?.unwrap_or(self.head);
            if size != self.head {
                return Err(bad_import(format!(
                    "`{prefix}.{key}` is {size}, but heads have {} values; only equal sizes are supported",
                    self.head
                )));
            }
        }
        match keys.optional_size("vocab_size")?.unwrap_or(self.vocabulary) {
            size if size == self.vocabulary => Ok(()),
            size => Err(bad_import(format!(
                "`{prefix}.vocab_size` is {size}, but `{EMBEDDING}` has {} rows",
                self.vocabulary
            ))),
        }
    }
}

const EMBEDDING: &str = "token_embd.weight";

fn vocabulary(header: &Header) -> Result<u64> {
    let embedding = header.tensors.iter().find(|tensor| tensor.name == EMBEDDING);
    embedding
        .map(|tensor| tensor.shape[0])
        .ok_or_else(|| bad_import(format!("tensor `{EMBEDDING}` is missing")))
}

/// Metadata under an architecture's prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn optional_size(&self, name: &str) -> Result<Option<u64>> {
        let key = self.key(name);
        match self.metadata.count(&key)? {
            Some(0) => Err(bad_import(format!("metadata `{key}` must be at least 1, found 0"))),
            size => Ok(size),
        }
    }

    pub(super) fn size(&self, name: &str) -> Result<u64> {
        required(self.optional_size(name)?, &self.key(name))
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>> {
        self.metadata.positive(&self.key(name))
    }

    /// The `rope_scaling` of a file that scales positions linearly; other kinds are refused by name.
    pub(super) fn linear_scaling(&self) -> Result<Option<Value>> {
        let type_key = self.key("rope.scaling.type");
        let factor = match self.metadata.string(&type_key)? {
            None => self.positive("rope.scale_linear")?.unwrap_or(1.0),
            Some("none") => 1.0,
            Some("linear") => self.positive("rope.scaling.factor")?.unwrap_or(1.0),
            Some(other) => {
                return Err(bad_import(format!(
                    "`{type_key}` is `{other}`; only none and linear are supported"
                )));
            }
        };
        let scaling = json!({ "type": "linear", "rope_type": "linear", "factor": factor });
        Ok((factor != 1.0).then_some(scaling))
    }

    fn required_positive(&self, name: &str) -> Result<f64> {
        required(self.positive(name)?, &self.key(name))
    }
}

/// How a tensor that every layer has is imported.
#[derive(Debug, Clone)]
pub(super) struct LayerTensor {
    /// The name after `blk.N.`.
    pub(super) source: &'static str,
    /// The name after `model.layers.N.`.
    pub(super) target: &'static str,
    pub(super) shape: Vec<u64>,
    pub(super) row_order: RowOrder,
    pub(super) shift: f32,
}

impl LayerTensor {
    pub(super) fn new(source: &'static str, target: &'static str, shape: &[u64]) -> Self {
        Self { source, target, shape: shape.to_vec(), row_order: RowOrder::AsStored, shift: 0.0 }
    }

    pub(super) fn half_split(self, heads: u64) -> Self {
        Self { row_order: RowOrder::HalfSplit { heads }, ..self }
    }

    pub(super) fn shifted(self, shift: f32) -> Self {
        Self { shift, ..self }
    }
}

/// The tensors of a header, each to be claimed once.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    unclaimed: HashMap<&'a str, &'a TensorInfo>,
    planned: Vec<TensorPlan>,
}

impl<'a> Claims<'a> {
    pub(super) fn new(header: &'a Header) -> Self {
        let unclaimed =
            header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        Self { unclaimed, planned: Vec::with_capacity(header.tensors.len()) }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.unclaimed.contains_key(name)
    }

    /// Claims a tensor that becomes configuration instead of a weight.
    pub(super) fn consume(&mut self, name: &str) {
        self.unclaimed.remove(name);
    }

    /// Claims `source` to be written as `target`, with each value shifted by `shift`.
    pub(super) fn claim(
        &mut self,
        source: &str,
        target: &str,
        shape: &[u64],
        shift: f32,
    ) -> Result<()> {
        self.plan(source, target.to_owned(), shape, RowOrder::AsStored, shift)
    }

    /// Claims one tensor per layer for each of `layer_tensors`.
    pub(super) fn claim_layers(
        &mut self,
        layers: u64,
        layer_tensors: &[LayerTensor],
    ) -> Result<()> {
        for layer in 0..layers {
            for tensor in layer_tensors {
                let source = format!("blk.{layer}.{}", tensor.source);
                let target = format!("model.layers.{layer}.{}", tensor.target);
                self.plan(&source, target, &tensor.shape, tensor.row_order, tensor.shift)?;
            }
        }
        Ok(())
    }

    /// Claims the embedding, the last norm and, if it is there, the untied head. Says whether the
    /// head is tied to the embedding.
    pub(super) fn claim_ends(&mut self, dimensions: &Dimensions, norm_shift: f32) -> Result<bool> {
        let matrix = [dimensions.vocabulary, dimensions.hidden];
        self.claim(EMBEDDING, "model.embed_tokens.weight", &matrix, 0.0)?;
        self.claim("output_norm.weight", "model.norm.weight", &[dimensions.hidden], norm_shift)?;
        let tied = !self.has("output.weight");
        if !tied {
            self.claim("output.weight", "lm_head.weight", &matrix, 0.0)?;
        }
        Ok(tied)
    }

    /// The plans, if every tensor has been claimed.
    pub(super) fn finish(self, architecture: &str) -> Result<Vec<TensorPlan>> {
        match self.unclaimed.keys().min() {
            None => Ok(self.planned),
            Some(name) => Err(bad_import(format!(
                "tensor `{name}` has no place in a {architecture} model as we know it"
            ))),
        }
    }

    fn plan(
        &mut self,
        source: &str,
        name: String,
        shape: &[u64],
        row_order: RowOrder,
        shift: f32,
    ) -> Result<()> {
        let Some(info) = self.unclaimed.remove(source) else {
            return Err(bad_import(format!("tensor `{source}` is missing")));
        };
        if info.shape != shape {
            return Err(bad_import(format!(
                "tensor `{source}` has shape {:?}, but the metadata asks for {shape:?}",
                info.shape
            )));
        }
        self.planned.push(TensorPlan { name, source: info.clone(), row_order, shift });
        Ok(())
    }
}
