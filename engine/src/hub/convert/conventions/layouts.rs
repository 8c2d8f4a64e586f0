//! The layouts of checkpoints, brought into MLX's: what each family's `sanitize` in mlx-lm 0.32.2 does, on
//! drafts.

use safetensors::Dtype;

use crate::error::{Code, Error, Result};
use crate::hub::convert::draft::{Draft, Drafts, Rows};
use crate::model::ModelConfig;
use crate::model::arch::{gemma4 as gemma4_names, qwen3_5 as qwen3_5_names};

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";
/// The parts of an expert.
const EXPERT: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Drops the head where the embedding is the head too, which goes without saying.
pub(super) fn drop_tied_head(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    if config.flag("tie_word_embeddings", true)? {
        drafts.discard(|name| name == HEAD);
    }
    Ok(())
}

/// A checkpoint without a head has the embedding's table for one of its own.
pub(super) fn minicpm(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    if !config.flag("tie_word_embeddings", false)? && !drafts.contains(HEAD) {
        let head = drafts.get(EMBEDDING)?.clone();
        drafts.put(HEAD.to_owned(), head);
    }
    Ok(())
}

/// Embedding models are published without the model's prefix.
pub(super) fn qwen3(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    const PREFIX: &str = "model.";
    if !drafts.iter().any(|(name, _)| name.starts_with(PREFIX)) {
        drafts.rename(|name| match name == HEAD {
            true => Some(name.to_owned()),
            false => Some(format!("{PREFIX}{name}")),
        })?;
    }
    drop_tied_head(config, drafts)
}

/// Experts are stored one by one.
pub(super) fn qwen3_moe(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    drop_tied_head(config, drafts)?;
    stack_experts(drafts, config.count("num_experts")?)
}

/// Without the layers that predict several tokens; experts are stored one by one, and the two matrices of
/// latent attention in one.
pub(super) fn glm(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    let layers = config.count("num_hidden_layers")?;
    drafts.discard(|name| layer_of(name).is_some_and(|layer| layer >= i64::from(layers)));
    if let Some(experts) = config.optional_count("n_routed_experts")? {
        stack_experts(drafts, experts)?;
    }
    for attention in drafts.stems(".kv_b_proj.weight") {
        split_latent(config, drafts, &attention)?;
    }
    Ok(())
}

fn layer_of(name: &str) -> Option<i64> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

/// The text part alone, under its names in MLX's layout. Hugging Face's has the convolution's axes in another
/// order, and norm weights around 0.
pub(super) fn qwen3_5(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    const MODEL: &str = "language_model.";
    drafts.rename(qwen3_5_names::name_in_mlx)?;
    if config.flag("tie_word_embeddings", false)? {
        drafts.discard(|name| name == format!("{MODEL}{HEAD}"));
    }
    part_experts(drafts, ".switch_mlp")?;
    let from_hub = drafts.iter().any(|(name, draft)| is_filter_of_the_hub(name, draft));
    let is_norm =
        |name: &str| qwen3_5_names::NORMS_AROUND_ZERO.iter().any(|end| name.ends_with(end));
    for (name, draft) in drafts.iter_mut() {
        if is_filter_of_the_hub(name, draft) {
            turn_filter(name, draft)?;
        }
        if from_hub && is_norm(name) && draft.shape.len() == 1 {
            draft.term = 1.0;
        }
    }
    Ok(())
}

/// Whether it is a convolution's weight with the tokens last, `[channels, 1, K]`.
fn is_filter_of_the_hub(name: &str, draft: &Draft) -> bool {
    name.ends_with("conv1d.weight") && draft.columns() != 1
}

/// `[channels, 1, K]` to `[channels, K, 1]`: the numbers stay where they are.
fn turn_filter(name: &str, draft: &mut Draft) -> Result<()> {
    let [channels, 1, taps] = draft.shape[..] else {
        let message =
            format!("tensor `{name}` has shape {:?}, not [channels, 1, taps]", draft.shape);
        return Err(Error::new(Code::BadModel, message));
    };
    draft.shape = vec![channels, taps, 1];
    Ok(())
}

/// The language model alone, under its names in MLX's layout.
pub(super) fn gemma4(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    drafts.rename(gemma4_names::wrapped_names(config)?)?;
    part_experts(drafts, ".experts.switch_glu")
}

/// The same where there is nothing beside it.
pub(super) fn gemma4_text(config: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    drafts.rename(gemma4_names::bare_names(config)?)?;
    part_experts(drafts, ".experts.switch_glu")
}

/// Parts stacks of experts whose gate and up are one, and puts them with the third under `target`.
fn part_experts(drafts: &mut Drafts, target: &str) -> Result<()> {
    for block in drafts.stems(".experts.gate_up_proj") {
        let stack = |name: &str| format!("{block}{target}.{name}.weight");
        let halves = [stack("gate_proj"), stack("up_proj")];
        drafts.halve(&format!("{block}.experts.gate_up_proj"), halves)?;
        let down = drafts.take(&format!("{block}.experts.down_proj"))?;
        drafts.put(stack("down_proj"), down);
    }
    Ok(())
}

/// OpenAI's blocks: mxfp4 values in bytes, with the rows of gate and up by turns. They stay packed as they are.
pub(super) fn gpt_oss(_: &ModelConfig, drafts: &mut Drafts) -> Result<()> {
    for (stored, part) in [("_blocks", ".weight"), ("_scales", ".scales"), ("_bias", ".bias")] {
        let joined = format!(".gate_up_proj{stored}");
        for experts in drafts.stems(&joined) {
            let names = ["gate_proj", "up_proj"].map(|name| format!("{experts}.{name}{part}"));
            drafts.deal(&format!("{experts}{joined}"), names)?;
        }
        let end = format!(".down_proj{stored}");
        for experts in drafts.stems(&end) {
            let down = drafts.take(&format!("{experts}{end}"))?;
            drafts.put(format!("{experts}.down_proj{part}"), down);
        }
    }
    for (name, draft) in drafts.iter_mut() {
        if draft.dtype == Dtype::U8 && name.ends_with(".weight") {
            join_words(name, draft)?;
        }
    }
    Ok(())
}

/// Blocks of bytes, `[E, out, in / 32, 16]`, as words: `[E, out, in / 8]`.
fn join_words(name: &str, draft: &mut Draft) -> Result<()> {
    const WORD_BYTES: usize = 4;
    let [stack, rows, blocks, bytes] = draft.shape[..] else {
        let message = format!("tensor `{name}` has shape {:?}, which are no blocks", draft.shape);
        return Err(Error::new(Code::BadModel, message));
    };
    if bytes % WORD_BYTES != 0 {
        let message = format!("tensor `{name}` has blocks of {bytes} bytes, which are no words");
        return Err(Error::new(Code::BadModel, message));
    }
    draft.shape = vec![stack, rows, blocks * bytes / WORD_BYTES];
    draft.dtype = Dtype::U32;
    Ok(())
}

/// Stacks experts that are stored one by one: `mlp.experts.N.up_proj.weight` to `mlp.switch_mlp.up_proj.weight`.
fn stack_experts(drafts: &mut Drafts, experts: i32) -> Result<()> {
    for part in EXPERT {
        for block in drafts.stems(&format!(".experts.0.{part}.weight")) {
            let one = |expert| format!("{block}.experts.{expert}.{part}.weight");
            let names: Vec<String> = (0..experts).map(one).collect();
            drafts.stack(&names, format!("{block}.switch_mlp.{part}.weight"))?;
        }
    }
    Ok(())
}

/// Splits `kv_b_proj`, `[heads * (keys + values), latent]`, into each head's `embed_q` `[latent, keys]` and
/// `unembed_out` `[values, latent]`.
fn split_latent(config: &ModelConfig, drafts: &mut Drafts, attention: &str) -> Result<()> {
    let size = |name: &str| Ok::<_, Error>(config.count(name)?.unsigned_abs() as usize);
    let (keys, values) = (size("qk_nope_head_dim")?, size("v_head_dim")?);
    let (heads, latent) = (size("num_attention_heads")?, size("kv_lora_rank")?);
    let name = format!("{attention}.kv_b_proj.weight");
    let joined = drafts.take(&name)?;
    let expected = [heads * (keys + values), latent];
    if joined.shape != expected {
        let message = format!(
            "tensor `{name}` has shape {:?}, but the config says {expected:?}",
            joined.shape
        );
        return Err(Error::new(Code::BadModel, message));
    }
    let rows = |head, start, count, transposed| {
        let first = head * (keys + values) + start;
        Rows { columns: latent, first, step: 1, count, transposed }
    };
    let into = (0..heads).map(|head| rows(head, 0, keys, true));
    let out_of = (0..heads).map(|head| rows(head, keys, values, false));
    let embed = joined.of_rows(vec![heads, latent, keys], into);
    let unembed = joined.of_rows(vec![heads, values, latent], out_of);
    drafts.put(format!("{attention}.embed_q.weight"), embed);
    drafts.put(format!("{attention}.unembed_out.weight"), unembed);
    Ok(())
}
