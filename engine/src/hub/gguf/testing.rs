//! A writer of GGUF files for tests: well-formed by default, malformed on request.

use super::TensorType;

/// A GGUF file under construction.
#[derive(Debug, Clone)]
pub(crate) struct GgufFile {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<StoredTensor>,
}

#[derive(Debug, Clone)]
struct StoredTensor {
    name: String,
    shape: Vec<u64>,
    code: u32,
    offset: Option<u64>,
    packed: Vec<u8>,
}

impl GgufFile {
    pub(crate) fn new() -> Self {
        Self { version: 3, alignment: 32, pairs: Vec::new(), tensors: Vec::new() }
    }

    /// Adds a pair with a value type and value of any bytes.
    pub(crate) fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut pair = sized(key.as_bytes());
        pair.extend(kind.to_le_bytes());
        pair.extend(value);
        self.pairs.push(pair);
        self
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &sized(value.as_bytes()))
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn boolean(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[value.into()])
    }

    pub(crate) fn strings(self, key: &str, values: &[&str]) -> Self {
        let items = values.iter().flat_map(|value| sized(value.as_bytes())).collect::<Vec<u8>>();
        self.array(key, 8, values.len(), &items)
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        self.array(key, 5, values.len(), &items)
    }

    pub(crate) fn f32s(self, key: &str, values: &[f32]) -> Self {
        let items = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        self.array(key, 6, values.len(), &items)
    }

    fn array(self, key: &str, kind: u32, count: usize, items: &[u8]) -> Self {
        let head = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()[..]].concat();
        self.raw(key, 9, &[&head[..], items].concat())
    }

    /// Adds a tensor; `shape` is outermost first.
    pub(crate) fn tensor(self, name: &str, shape: &[u64], kind: TensorType, packed: &[u8]) -> Self {
        self.raw_tensor(name, shape, kind.code(), None, packed)
    }

    /// Adds an F32 tensor of `values`.
    pub(crate) fn floats(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, TensorType::F32, &packed)
    }

    /// Adds a tensor of any type code, at any offset if one is given.
    pub(crate) fn raw_tensor(
        mut self,
        name: &str,
        shape: &[u64],
        code: u32,
        offset: Option<u64>,
        packed: &[u8],
    ) -> Self {
        let (name, shape, packed) = (name.to_owned(), shape.to_vec(), packed.to_vec());
        self.tensors.push(StoredTensor { name, shape, code, offset, packed });
        self
    }

    /// Drops a tensor that was added.
    pub(crate) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The file, without padding after the last tensor.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.pairs.len() as u64).to_le_bytes());
        file.extend(self.pairs.concat());
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            file.extend(sized(tensor.name.as_bytes()));
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            file.extend(tensor.shape.iter().rev().flat_map(|size| size.to_le_bytes()));
            file.extend(tensor.code.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.packed);
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(data);
        file
    }
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// The value of element `index` of the tensor called `name`: small, exact in bf16, and telling.
pub(crate) fn telling_value(name: &str, index: u64) -> f32 {
    let salt =
        name.bytes().fold(7u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into()));
    ((salt.wrapping_add(index * 5) % 127) as f32 - 63.0) / 64.0
}

fn telling(file: GgufFile, name: &str, shape: &[u64]) -> GgufFile {
    let count: u64 = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|index| telling_value(name, index)).collect();
    file.floats(name, shape, &values)
}

/// Tokens of [`tiny_llama`] and [`tiny_gemma`]: three with a role, the rest letters and a union.
pub(crate) const TOKENS: [&str; 8] = ["<s>", "</s>", "<unk>", "a", "b", "c", "ab", "d"];
/// Sizes of the two tiny models.
pub(crate) mod tiny {
    pub(crate) const HIDDEN: u64 = 8;
    pub(crate) const INTERMEDIATE: u64 = 12;
    pub(crate) const HEADS: u64 = 2;
    pub(crate) const KV_HEADS: u64 = 1;
    pub(crate) const HEAD: u64 = 4;
    pub(crate) const LAYERS: u64 = 2;
}

fn tiny_sizes(architecture: &str) -> GgufFile {
    let key = |name: &str| format!("{architecture}.{name}");
    GgufFile::new()
        .string("general.architecture", architecture)
        .u32(&key("block_count"), tiny::LAYERS as u32)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), tiny::HIDDEN as u32)
        .u32(&key("feed_forward_length"), tiny::INTERMEDIATE as u32)
        .u32(&key("attention.head_count"), tiny::HEADS as u32)
        .u32(&key("attention.head_count_kv"), tiny::KV_HEADS as u32)
        .u32(&key("attention.key_length"), tiny::HEAD as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .strings("tokenizer.ggml.tokens", &TOKENS)
        .i32s("tokenizer.ggml.token_type", &[3, 3, 2, 1, 1, 1, 1, 1])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1)
}

fn tiny_weights(mut file: GgufFile, layer_norms: &[(&str, u64)]) -> GgufFile {
    use tiny::{HEAD, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS};
    file = telling(file, "token_embd.weight", &[TOKENS.len() as u64, HIDDEN]);
    for layer in 0..LAYERS {
        let matrices = [
            ("attn_q", [HEADS * HEAD, HIDDEN]),
            ("attn_k", [KV_HEADS * HEAD, HIDDEN]),
            ("attn_v", [KV_HEADS * HEAD, HIDDEN]),
            ("attn_output", [HIDDEN, HEADS * HEAD]),
            ("ffn_gate", [INTERMEDIATE, HIDDEN]),
            ("ffn_up", [INTERMEDIATE, HIDDEN]),
            ("ffn_down", [HIDDEN, INTERMEDIATE]),
        ];
        for (name, shape) in matrices {
            file = telling(file, &format!("blk.{layer}.{name}.weight"), &shape);
        }
        for (name, size) in layer_norms {
            file = telling(file, &format!("blk.{layer}.{name}.weight"), &[*size]);
        }
    }
    telling(file, "output_norm.weight", &[HIDDEN])
}

/// A complete llama model with a byte-level tokenizer.
pub(crate) fn tiny_llama() -> GgufFile {
    let file = tiny_sizes("llama")
        .f32("llama.rope.freq_base", 100_000.0)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.merges", &["a b"])
        .string("tokenizer.chat_template", "{{ messages }}");
    tiny_weights(file, &[("attn_norm", tiny::HIDDEN), ("ffn_norm", tiny::HIDDEN)])
}

/// A complete gemma3 model with a SentencePiece tokenizer.
pub(crate) fn tiny_gemma() -> GgufFile {
    let file = tiny_sizes("gemma3")
        .u32("gemma3.attention.sliding_window", 16)
        .string("tokenizer.ggml.model", "llama")
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -2.0, -3.0, -4.0, -1.0, -5.0])
        .boolean("tokenizer.ggml.add_space_prefix", false);
    let norms = [
        ("attn_norm", tiny::HIDDEN),
        ("attn_q_norm", tiny::HEAD),
        ("attn_k_norm", tiny::HEAD),
        ("post_attention_norm", tiny::HIDDEN),
        ("ffn_norm", tiny::HIDDEN),
        ("post_ffw_norm", tiny::HIDDEN),
    ];
    tiny_weights(file, &norms)
}
