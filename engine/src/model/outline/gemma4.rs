//! Tensors of Gemma 4's checkpoints that are not run, by parts of their names.

/// Beginnings of the names of what sees and hears.
pub(crate) const TOWERS: [&str; 6] = [
    "vision_tower",
    "multi_modal_projector",
    "audio_tower",
    "embed_audio",
    "embed_vision",
    "vision_embedder",
];

/// Parts of the names of tensors that are no weights: tables, and the ranges of activations.
pub(crate) const NO_WEIGHTS: [&str; 5] =
    ["self_attn.rotary_emb", "input_max", "input_min", "output_max", "output_min"];

/// Parts of the names of what a layer that attends to another's columns does not use, though Hugging
/// Face's checkpoints hold it.
pub(crate) const KEYS_AND_VALUES: [&str; 3] =
    [".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.k_norm"];
