use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use half::bf16;
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

use super::{ImportProgress, Imported, MARKER_FILE, WeightDtype, import};
use crate::error::{Code, Error, Result};
use crate::hub::gguf::testing::{GgufFile, TOKENS, telling_value, tiny, tiny_gemma, tiny_llama};

/// A place with a GGUF file and room for an import.
struct Place {
    root: TempDir,
}

impl Place {
    fn with(bytes: &[u8]) -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("model.gguf"), bytes).unwrap();
        Self { root }
    }

    fn out(&self) -> PathBuf {
        self.root.path().join("out")
    }

    fn import(&self, dtype: WeightDtype) -> Result<Imported> {
        import(&self.root.path().join("model.gguf"), &self.out(), dtype, &mut |_| ())
    }

    /// What is there beside the GGUF file.
    fn left(&self) -> BTreeSet<String> {
        names(self.root.path()).into_iter().filter(|name| name != "model.gguf").collect()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.out().join(name)).unwrap()).unwrap()
    }

    fn weights(&self) -> Vec<u8> {
        fs::read(self.out().join("model.safetensors")).unwrap()
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(directory).unwrap().map(name).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Importing must fail for the reason that `fragment` is part of, and leave nothing.
fn check_refused(file: &GgufFile, dtype: WeightDtype, fragment: &str) -> Error {
    let place = Place::with(&file.build());
    let error = place.import(dtype).unwrap_err();
    assert!(error.to_string().contains(fragment), "{error}");
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert_eq!(place.left(), BTreeSet::new());
    error
}

#[test]
fn an_import_is_a_complete_model_directory() {
    let place = Place::with(&tiny_llama().build());
    let imported = place.import(WeightDtype::F32).unwrap();
    let files = ["config.json", "generation_config.json", "model.safetensors", MARKER_FILE]
        .into_iter()
        .chain(["tokenizer.json", "tokenizer_config.json"]);
    assert_eq!(names(&place.out()), files.map(str::to_owned).collect());
    assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
    assert_eq!(imported.directory, place.out());
    assert_eq!(imported.tensors, 20);
    assert_eq!(imported.vocabulary_tokens, TOKENS.len());
    assert!(imported.has_chat_template);

    let config = place.json("config.json");
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["num_hidden_layers"], 2);
    assert_eq!(config["head_dim"], 4);
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["rope_theta"], 100_000.0);
    assert_eq!(config["tie_word_embeddings"], true);
    assert_eq!(config["torch_dtype"], "float32");
    assert_eq!(config["eos_token_id"], 1);
    assert_eq!(place.json("generation_config.json")["eos_token_id"], 1);
    assert_eq!(place.json("tokenizer_config.json")["model_max_length"], 64);
    assert_eq!(place.json(MARKER_FILE)["version"], 1);
    tokenizers::Tokenizer::from_file(place.out().join("tokenizer.json")).unwrap();
}

#[test]
fn weights_are_readable_by_whoever_can_read_the_config() {
    let place = Place::with(&tiny_llama().build());
    place.import(WeightDtype::F32).unwrap();
    let permissions = |name: &str| fs::metadata(place.out().join(name)).unwrap().permissions();
    assert_eq!(permissions("model.safetensors"), permissions("config.json"));
}

#[test]
fn llama_query_and_key_rows_are_put_in_half_split_order_and_others_stay() {
    let place = Place::with(&tiny_llama().build());
    place.import(WeightDtype::F32).unwrap();
    let bytes = place.weights();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    let value =
        |name: &str, row: u64, column: u64| telling_value(name, row * tiny::HIDDEN + column);

    let query = weights.tensor("model.layers.1.self_attn.q_proj.weight").unwrap();
    assert_eq!(query.shape(), [8, 8]);
    // Each head of 4 holds the pairs (0, 1) and (2, 3) in the file.
    let stored_rows = [0, 2, 1, 3, 4, 6, 5, 7];
    let expected: Vec<f32> = stored_rows
        .iter()
        .flat_map(|row| (0..8).map(move |column| (*row, column)))
        .map(|(row, column)| value("blk.1.attn_q.weight", row, column))
        .collect();
    assert_eq!(floats(query.data()), expected);

    let values = weights.tensor("model.layers.1.self_attn.v_proj.weight").unwrap();
    let expected: Vec<f32> =
        (0..32).map(|index| telling_value("blk.1.attn_v.weight", index)).collect();
    assert_eq!(floats(values.data()), expected);
    assert!(weights.tensor("lm_head.weight").is_err());
}

#[test]
fn gemma_norms_lose_the_one_that_the_converter_added() {
    let place = Place::with(&tiny_gemma().build());
    place.import(WeightDtype::F32).unwrap();
    let bytes = place.weights();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    let norms = [
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"),
        ("model.layers.0.post_feedforward_layernorm.weight", "blk.0.post_ffw_norm.weight"),
    ];
    for (target, source) in norms {
        let found = floats(weights.tensor(target).unwrap().data());
        for (index, value) in found.iter().enumerate() {
            assert_eq!(*value, telling_value(source, index as u64) - 1.0, "{target}");
        }
    }
    let query = floats(weights.tensor("model.layers.0.self_attn.q_proj.weight").unwrap().data());
    assert_eq!(query[9], telling_value("blk.0.attn_q.weight", 9));

    let config = place.json("config.json");
    assert_eq!(config["model_type"], "gemma3_text");
    assert_eq!(config["sliding_window"], 16);
    assert_eq!(config["sliding_window_pattern"], 6);
    assert_eq!(config["query_pre_attn_scalar"], 4);
    assert_eq!(config["rope_theta"], 1_000_000.0);
    assert_eq!(config["rope_local_base_freq"], 10_000.0);
}

#[test]
fn an_untied_head_is_written() {
    let head = vec![0.5; TOKENS.len() * tiny::HIDDEN as usize];
    let shape = [TOKENS.len() as u64, tiny::HIDDEN];
    let place = Place::with(&tiny_llama().floats("output.weight", &shape, &head).build());
    place.import(WeightDtype::F32).unwrap();
    let bytes = place.weights();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(floats(weights.tensor("lm_head.weight").unwrap().data()), head);
    assert_eq!(place.json("config.json")["tie_word_embeddings"], false);
}

#[test]
fn attention_biases_follow_their_rows() {
    let mut file = tiny_llama();
    for layer in 0..tiny::LAYERS {
        for (name, size) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4), ("attn_output", 8)] {
            let values: Vec<f32> = (0..size).map(|index| index as f32).collect();
            file = file.floats(&format!("blk.{layer}.{name}.bias"), &[size], &values);
        }
    }
    let place = Place::with(&file.build());
    place.import(WeightDtype::F32).unwrap();
    let bytes = place.weights();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    let bias = weights.tensor("model.layers.0.self_attn.q_proj.bias").unwrap();
    assert_eq!(floats(bias.data()), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    let bias = weights.tensor("model.layers.0.self_attn.o_proj.bias").unwrap();
    assert_eq!(floats(bias.data()), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(place.json("config.json")["attention_bias"], true);
}

#[test]
fn the_dtype_is_the_one_asked_for() {
    let halves = [(WeightDtype::Bf16, Dtype::BF16), (WeightDtype::F16, Dtype::F16)];
    for (dtype, stored) in halves {
        let place = Place::with(&tiny_llama().build());
        let imported = place.import(dtype).unwrap();
        let bytes = place.weights();
        let weights = SafeTensors::deserialize(&bytes).unwrap();
        let norm = weights.tensor("model.norm.weight").unwrap();
        assert_eq!(norm.dtype(), stored);
        assert_eq!(
            imported.weight_bytes,
            weights.tensors().iter().map(|(_, view)| view.data().len() as u64).sum::<u64>()
        );
        if dtype == WeightDtype::Bf16 {
            let first = bf16::from_le_bytes([norm.data()[0], norm.data()[1]]);
            assert_eq!(first.to_f32(), telling_value("output_norm.weight", 0));
        }
    }
}

#[test]
fn dtypes_are_read_and_written_by_name() {
    for name in ["f32", "bf16", "f16"] {
        assert_eq!(name.parse::<WeightDtype>().unwrap().to_string(), name);
    }
    let error = "q4".parse::<WeightDtype>().unwrap_err();
    assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("dtype")));
}

#[test]
fn progress_rises_to_the_total_and_ends_with_the_flush() {
    let place = Place::with(&tiny_llama().build());
    let mut seen = Vec::new();
    let file = place.root.path().join("model.gguf");
    let imported = import(&file, &place.out(), WeightDtype::F16, &mut |step| {
        seen.push(step);
    })
    .unwrap();
    assert_eq!(seen.first(), Some(&ImportProgress::Reading));
    assert_eq!(seen.last(), Some(&ImportProgress::Flushing));
    let done: Vec<u64> = seen
        .iter()
        .filter_map(|step| match step {
            ImportProgress::Weights { done_bytes, total_bytes } => {
                assert_eq!(*total_bytes, imported.weight_bytes);
                Some(*done_bytes)
            }
            ImportProgress::Reading | ImportProgress::Flushing => None,
        })
        .collect();
    assert_eq!(done.len(), imported.tensors);
    assert!(done.is_sorted());
    assert_eq!(done.last(), Some(&imported.weight_bytes));
}

#[test]
fn a_value_that_the_dtype_cannot_hold_is_refused() {
    let with = |value: f32| {
        tiny_llama().without_tensor("output_norm.weight").floats(
            "output_norm.weight",
            &[tiny::HIDDEN],
            &[value; tiny::HIDDEN as usize],
        )
    };
    let error = check_refused(&with(1e6), WeightDtype::F16, "does not fit in f16");
    assert!(error.hint().unwrap().contains("bf16"));
    for value in [f32::NAN, f32::INFINITY] {
        check_refused(&with(value), WeightDtype::F32, "not a finite number");
    }
    check_refused(&with(f32::MAX), WeightDtype::Bf16, "output_norm.weight");
}

#[test]
fn a_vocabulary_of_another_size_than_the_embedding_is_refused() {
    let columns = tiny::HIDDEN as usize;
    let file = tiny_llama().without_tensor("token_embd.weight").floats(
        "token_embd.weight",
        &[9, tiny::HIDDEN],
        &vec![0.0; 9 * columns],
    );
    check_refused(&file, WeightDtype::F32, "8 tokens, but the embedding has 9 rows");
}

#[test]
fn an_import_replaces_an_earlier_one() {
    let place = Place::with(&tiny_gemma().build());
    place.import(WeightDtype::F32).unwrap();
    fs::write(place.root.path().join("model.gguf"), tiny_llama().build()).unwrap();
    place.import(WeightDtype::Bf16).unwrap();
    assert_eq!(place.json("config.json")["model_type"], "llama");
    assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
}

#[test]
fn a_failed_import_leaves_an_earlier_one_as_it_was() {
    let place = Place::with(&tiny_gemma().build());
    place.import(WeightDtype::F32).unwrap();
    let before = place.weights();
    fs::write(place.root.path().join("model.gguf"), &tiny_llama().build()[..2000]).unwrap();
    place.import(WeightDtype::F32).unwrap_err();
    assert_eq!(place.weights(), before);
    assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
}

#[test]
fn what_is_not_an_import_is_never_overwritten() {
    let check = |prepare: &dyn Fn(&Path), fragment: &str| {
        let place = Place::with(&tiny_llama().build());
        prepare(&place.out());
        let error = place.import(WeightDtype::F32).unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("out")));
        assert!(error.message().contains(fragment), "{error}");
        assert!(error.hint().is_some());
        assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
    };
    let directory_with = |out: &Path, names: &[&str]| {
        fs::create_dir(out).unwrap();
        for name in names {
            fs::write(out.join(name), "{}").unwrap();
        }
    };
    check(&|out| fs::write(out, "a file").unwrap(), "is not a directory");
    check(&|out| directory_with(out, &["config.json"]), "no import");
    check(&|out| directory_with(out, &[MARKER_FILE, "thesis.tex"]), "thesis.tex");
}

#[test]
fn an_empty_directory_and_missing_parents_are_no_obstacle() {
    let place = Place::with(&tiny_llama().build());
    fs::create_dir(place.out()).unwrap();
    place.import(WeightDtype::F32).unwrap();
    let nested = place.root.path().join("a/b/model");
    import(&place.root.path().join("model.gguf"), &nested, WeightDtype::F32, &mut |_| ()).unwrap();
    assert!(nested.join("config.json").is_file());
}

#[test]
fn the_remains_of_a_killed_import_are_cleared() {
    let place = Place::with(&tiny_llama().build());
    let partial = place.root.path().join("out.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join(".tmpX9"), "half a file").unwrap();
    fs::write(partial.join(".lock"), "").unwrap();
    place.import(WeightDtype::F32).unwrap();
    assert_eq!(names(&place.out()).len(), 6);
    assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
}

#[test]
fn two_imports_never_share_a_directory() {
    let place = Place::with(&tiny_llama().build());
    let partial = place.root.path().join("out.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("config.json"), "the other's").unwrap();
    let lock = File::create(partial.join(".lock")).unwrap();
    lock.lock().unwrap();
    let error = place.import(WeightDtype::F32).unwrap_err();
    assert!(error.message().contains("another process"), "{error}");
    assert!(partial.join("config.json").is_file());
}

#[test]
fn a_missing_file_is_named() {
    let place = Place::with(b"");
    let missing = place.root.path().join("absent.gguf");
    let error = import(&missing, &place.out(), WeightDtype::F32, &mut |_| ()).unwrap_err();
    assert_eq!(error.code(), Code::Io);
    assert!(error.message().contains("absent.gguf"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_truncated_file_leaves_nothing_behind(cut in any::<prop::sample::Index>()) {
        let bytes = tiny_gemma().build();
        let place = Place::with(&bytes[..cut.index(bytes.len())]);
        let error = place.import(WeightDtype::F32).unwrap_err();
        prop_assert_eq!(error.code(), Code::BadImport);
        prop_assert_eq!(place.left(), BTreeSet::new());
    }

    #[test]
    fn a_damaged_file_gives_all_or_nothing(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = tiny_llama().build();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let place = Place::with(&bytes);
        match place.import(WeightDtype::F32) {
            Ok(_) => {
                prop_assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
                prop_assert_eq!(names(&place.out()).len(), 6);
                SafeTensors::deserialize(&place.weights()).unwrap();
            }
            Err(error) => {
                prop_assert_eq!(error.code(), Code::BadImport);
                prop_assert_eq!(place.left(), BTreeSet::new());
            }
        }
    }
}
