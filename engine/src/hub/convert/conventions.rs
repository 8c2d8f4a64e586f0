//! What mlx-lm 0.32.2 does family by family when it converts: how it names and arranges tensors (`sanitize`),
//! which modules it packs in their own way (`quant_predicate`), and which numbers keep their type
//! (`cast_predicate`).

mod layouts;

use crate::error::{Code, Error, Result};
use crate::model::ModelConfig;

use self::layouts::{
    drop_tied_head, gemma4, gemma4_text, glm, gpt_oss, minicpm, qwen3, qwen3_5, qwen3_moe,
};
use super::draft::Drafts;

/// Ends of the names of modules that some families keep in 8 bits, in groups of 64.
type Ends = &'static [&'static str];

/// A family's ways.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conventions {
    /// Brings the tensors into MLX's layout and drops what is not run.
    pub(super) arrange: fn(&ModelConfig, &mut Drafts) -> Result<()>,
    /// Modules in 8 bits, in groups of 64, however the others are packed: small ones that much depends on.
    pub(super) finer: Ends,
    /// Matrices that belong to no layer that can be packed.
    pub(super) dense: Ends,
    /// Tensors that keep the type in which they are stored.
    pub(super) kept_types: Ends,
}

const PLAIN: Conventions =
    Conventions { arrange: |_, _| Ok(()), finer: &[], dense: &[], kept_types: &[] };

/// Families whose head is dropped where the embedding is the head too.
const HEADED: Conventions = Conventions { arrange: drop_tied_head, ..PLAIN };

const GEMMA4: Conventions = Conventions { arrange: gemma4, finer: &["router.proj"], ..PLAIN };

const GLM: Conventions = Conventions {
    arrange: glm,
    dense: &["mlp.gate.weight"],
    kept_types: &["e_score_correction_bias"],
    ..PLAIN
};

const QWEN3_5: Conventions = Conventions {
    arrange: qwen3_5,
    finer: &["mlp.gate", "shared_expert_gate"],
    dense: &["conv1d.weight"],
    kept_types: &["A_log"],
};

const BY_MODEL_TYPE: &[(&str, Conventions)] = &[
    ("gemma", PLAIN),
    ("gemma2", PLAIN),
    ("gemma3_text", PLAIN),
    ("gemma4", GEMMA4),
    ("gemma4_text", Conventions { arrange: gemma4_text, ..GEMMA4 }),
    ("gemma4_unified", GEMMA4),
    ("glm4", PLAIN),
    ("glm4_moe_lite", GLM),
    ("glm_moe_dsa", GLM),
    ("gpt_oss", Conventions { arrange: gpt_oss, finer: &["router"], ..PLAIN }),
    ("granite", Conventions { finer: &["self_attn.o_proj", "mlp.down_proj", "lm_head"], ..HEADED }),
    ("llama", HEADED),
    ("minicpm", Conventions { arrange: minicpm, ..PLAIN }),
    ("minicpm3", PLAIN),
    ("ministral3", HEADED),
    ("mistral", HEADED),
    ("olmo3", PLAIN),
    ("phi3", PLAIN),
    ("qwen2", HEADED),
    ("qwen3", Conventions { arrange: qwen3, ..PLAIN }),
    ("qwen3_5", QWEN3_5),
    ("qwen3_5_moe", QWEN3_5),
    ("qwen3_moe", Conventions { arrange: qwen3_moe, finer: &["mlp.gate"], ..PLAIN }),
    ("smollm3", HEADED),
];

impl Conventions {
    /// Those of the family `model_type`, one that we run.
    ///
    /// # Errors
    /// `Unsupported` naming a family that mlx-lm does not convert.
    pub(super) fn of(model_type: &str) -> Result<Self> {
        let known = BY_MODEL_TYPE.iter().find(|(name, _)| *name == model_type);
        known.map(|(_, conventions)| *conventions).ok_or_else(|| {
            let message = format!("models of type `{model_type}` cannot be converted");
            Error::new(Code::Unsupported, message)
                .with_hint("fetch a quantized checkpoint from mlx-community")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;

    #[test]
    fn every_family_that_mlx_lm_has_can_be_converted() {
        let unknown = |family: &&Family| Conventions::of(family.model_type).is_err();
        let unknown: Vec<_> = Family::all().iter().filter(unknown).collect();
        let names: Vec<_> = unknown.into_iter().map(|family| family.model_type).collect();
        // mlx-lm 0.32.2 does not have it.
        assert_eq!(names, ["diffusion_gemma"]);
        let error = Conventions::of("diffusion_gemma").unwrap_err();
        assert!(error.message().contains("diffusion_gemma"), "{error}");
    }
}
