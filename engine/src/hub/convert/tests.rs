use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ConvertOptions, ConvertProgress, Converted, convert, convert_in_shards};
use crate::error::{Code, Error, Result};
use crate::hub::WeightDtype;
use crate::mlx::Device;

/// A tensor to write.
#[derive(Debug, Clone)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Numbers that tell their places, between -1 and 1.
    fn telling(shape: &[usize]) -> Self {
        let value = |index: usize| bf16::from_f32((index as f32 * 0.61).sin());
        let count = shape.iter().product();
        let bytes = (0..count).flat_map(|index| value(index).to_le_bytes()).collect();
        Self { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
    }

    /// The same in another type, with `value` in the middle.
    fn with(&self, dtype: Dtype, value: f32) -> Self {
        let values = self.bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes));
        let mut values: Vec<f32> = values.map(bf16::to_f32).collect();
        let middle = values.len() / 2;
        values[middle] = value;
        let encode = |value: &f32| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
            _ => bf16::from_f32(*value).to_le_bytes().to_vec(),
        };
        Self { dtype, shape: self.shape.clone(), bytes: values.iter().flat_map(encode).collect() }
    }
}

type Tensors = BTreeMap<String, Tensor>;

/// A Llama of two layers.
fn llama() -> (Value, Tensors) {
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 48,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 64,
        "tie_word_embeddings": false, "vision_config": { "depth": 1 },
    });
    let mut shapes = vec![("model.embed_tokens", vec![48, 64]), ("lm_head", vec![48, 64])];
    shapes.push(("model.norm", vec![64]));
    let mut tensors: Vec<(String, Vec<usize>)> =
        shapes.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect();
    for layer in 0..2 {
        let parts: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[64]),
            ("post_attention_layernorm", &[64]),
            ("self_attn.q_proj", &[64, 64]),
            ("self_attn.k_proj", &[32, 64]),
            ("self_attn.v_proj", &[32, 64]),
            ("self_attn.o_proj", &[64, 64]),
            ("mlp.gate_proj", &[96, 64]),
            ("mlp.up_proj", &[96, 64]),
            ("mlp.down_proj", &[64, 96]),
        ];
        tensors.extend(
            parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape.to_vec())),
        );
    }
    let tensor =
        |(name, shape): (String, Vec<usize>)| (format!("{name}.weight"), Tensor::telling(&shape));
    (config, tensors.into_iter().map(tensor).collect())
}

/// A place with a checkpoint and room for a conversion.
struct Place {
    root: TempDir,
}

impl Place {
    fn with(config: &Value, tensors: &Tensors) -> Self {
        Device::cpu();
        let place = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(place.source()).unwrap();
        fs::write(place.source().join("config.json"), config.to_string()).unwrap();
        let views = tensors.iter().map(|(name, tensor)| {
            let Tensor { dtype, shape, bytes } = tensor;
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let file = place.source().join("model.safetensors");
        safetensors::serialize_to_file(views, None, &file).unwrap();
        place
    }

    fn llama() -> Self {
        let (config, tensors) = llama();
        Self::with(&config, &tensors)
    }

    /// A Llama in which `name` is `tensor`.
    fn llama_with(name: &str, tensor: Tensor) -> Self {
        let (config, mut tensors) = llama();
        tensors.insert(name.to_owned(), tensor);
        Self::with(&config, &tensors)
    }

    fn source(&self) -> PathBuf {
        self.root.path().join("source")
    }

    fn out(&self) -> PathBuf {
        self.root.path().join("out")
    }

    fn convert(&self, options: &ConvertOptions) -> Result<Converted> {
        convert(&self.source(), &self.out(), options, &mut |_| ControlFlow::Continue(()))
    }

    /// What is there beside the checkpoint.
    fn left(&self) -> BTreeSet<String> {
        names(self.root.path()).into_iter().filter(|name| name != "source").collect()
    }

    /// Converting must fail with words of `fragments`, and leave nothing.
    fn check_refused(&self, options: &ConvertOptions, fragments: &[&str]) -> Error {
        let error = self.convert(options).unwrap_err();
        for fragment in fragments {
            assert!(error.to_string().contains(fragment), "`{fragment}` is not in `{error}`");
        }
        assert!(error.message().contains("source"), "{error}");
        assert_eq!(self.left(), BTreeSet::new());
        error
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(directory).unwrap().map(name).collect()
}

fn options() -> ConvertOptions {
    ConvertOptions::new(4, 32, None).unwrap()
}

/// Every tensor in the files of a checkpoint.
fn stored(directory: &Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let files = names(directory).into_iter().filter(|name| name.ends_with(".safetensors"));
    let mut tensors = BTreeMap::new();
    for file in files {
        let bytes = fs::read(directory.join(file)).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let tensor = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            assert!(tensors.insert(name.to_owned(), tensor).is_none(), "`{name}` twice");
        }
    }
    tensors
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_conversion_is_a_complete_model_directory() {
    let place = Place::llama();
    for name in ["tokenizer.json", "chat_template.jinja", "modeling_llama.py", "README.md"] {
        fs::write(place.source().join(name), name).unwrap();
    }
    fs::write(place.source().join("generation_config.json"), r#"{"eos_token_id": 7}"#).unwrap();
    let converted = place.convert(&options()).unwrap();
    let files = ["chat_template.jinja", "config.json", "generation_config.json"];
    let files = files.into_iter().chain(["model.safetensors", "model.safetensors.index.json"]);
    let files: BTreeSet<String> = files.chain(["tokenizer.json"]).map(str::to_owned).collect();
    assert_eq!(names(&place.out()), files);
    assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
    assert_eq!(fs::read_to_string(place.out().join("tokenizer.json")).unwrap(), "tokenizer.json");
    let config = json_of(&place.out().join("config.json"));
    assert_eq!((&config["eos_token_id"], config.get("vision_config")), (&json!(7), None));
    let tensors = stored(&place.out());
    assert_eq!((converted.tensors, converted.packed_matrices), (tensors.len(), 16));
    let file_bytes = fs::metadata(place.out().join("model.safetensors")).unwrap().len();
    assert_eq!(converted.weight_bytes, file_bytes);
    let index = json_of(&place.out().join("model.safetensors.index.json"));
    let total: usize = tensors.values().map(|(_, _, bytes)| bytes.len()).sum();
    assert_eq!(index["metadata"]["total_size"], total);
    assert!(index["weight_map"].as_object().unwrap().keys().eq(tensors.keys()));
}

#[test]
fn shards_hold_the_tensors_of_one_file_and_no_more_bytes_than_they_may() {
    let place = Place::llama();
    place.convert(&options()).unwrap();
    let whole = stored(&place.out());
    for shard_bytes_max in [1, 3_000, 10_000] {
        let out = place.root.path().join(shard_bytes_max.to_string());
        let go_on = &mut |_: ConvertProgress| ControlFlow::Continue(());
        convert_in_shards(&place.source(), &out, &options(), shard_bytes_max, go_on).unwrap();
        assert_eq!(stored(&out), whole);
        let index = json_of(&out.join("model.safetensors.index.json"));
        let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, file) in index["weight_map"].as_object().unwrap() {
            shards.entry(file.as_str().unwrap()).or_default().insert(name);
        }
        assert!(shards.len() > 1 && shards.len() <= 21, "{}", shards.len());
        for (index, (file, names)) in shards.into_iter().enumerate() {
            let count = stored_files(&out);
            assert_eq!(file, format!("model-{:05}-of-{count:05}.safetensors", index + 1));
            let bytes: u64 = names.iter().map(|name| whole[*name].2.len() as u64).sum();
            // The parts of one matrix stay together.
            assert!(bytes <= shard_bytes_max || names.len() <= 3, "{file}: {bytes}");
            let held = SafeTensors::deserialize(&fs::read(out.join(file)).unwrap())
                .unwrap()
                .names()
                .into_iter()
                .map(str::to_owned)
                .collect::<BTreeSet<_>>();
            assert!(held.iter().map(String::as_str).eq(names), "{file}");
        }
    }
}

fn stored_files(directory: &Path) -> usize {
    names(directory).iter().filter(|name| name.ends_with(".safetensors")).count()
}

#[test]
fn nothing_that_exists_is_overwritten() {
    let check = |make: &dyn Fn(&Path)| {
        let place = Place::llama();
        make(&place.out());
        let error = place.convert(&options()).unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("out")));
        assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
    };
    check(&|out| fs::write(out, "a file").unwrap());
    check(&|out| fs::create_dir(out).unwrap());
    check(&|out| std::os::unix::fs::symlink("nowhere", out).unwrap());
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_the_name_of_their_tensor() {
    let dense = "model.layers.1.input_layernorm.weight";
    let packed = "model.layers.0.mlp.down_proj.weight";
    let (_, tensors) = llama();
    for name in [dense, packed] {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let place = Place::llama_with(name, tensors[name].with(dtype, value));
                let error = place.check_refused(&options(), &[name, "NaN or infinity"]);
                assert_eq!(error.code(), Code::BadModel);
            }
            let place = Place::llama_with(name, tensors[name].with(dtype, -3.0));
            place.convert(&options()).unwrap();
        }
    }
}

#[test]
fn a_value_that_does_not_fit_the_type_asked_for_is_refused() {
    let name = "model.layers.0.mlp.down_proj.weight";
    let (_, tensors) = llama();
    let in_f16 = ConvertOptions::new(8, 32, Some(WeightDtype::F16)).unwrap();
    let large = Place::llama_with(name, tensors[name].with(Dtype::F32, -65_520.0));
    large.check_refused(&in_f16, &[name, "6.552e4 does not fit in f16", "--dtype bf16"]);
    let fits = Place::llama_with(name, tensors[name].with(Dtype::F32, -65_519.0));
    fits.convert(&in_f16).unwrap();
}

#[test]
fn what_is_quantized_already_is_refused_whoever_did_it() {
    let (config, tensors) = llama();
    let with = |name: &str, value: Value| {
        let mut config = config.clone();
        config[name] = value;
        Place::with(&config, &tensors)
    };
    let mlx = json!({ "group_size": 64, "bits": 4 });
    let cases = [
        (with("quantization", mlx.clone()), "`quantization`"),
        (with("quantization_config", json!({ "quant_method": "fp8" })), "`fp8`"),
        (with("text_config", json!({ "quantization_config": mlx })), "`quantization_config`"),
        (Place::llama_with("lm_head.weight_scale_inv", Tensor::telling(&[1])), "weight_scale_inv"),
        (Place::llama_with("lm_head.scales", Tensor::telling(&[48, 1])), "lm_head.scales"),
    ];
    for (place, word) in cases {
        let error = place.check_refused(&options(), &["quantized already", word]);
        assert_eq!(error.code(), Code::BadModel);
    }
    let place = Place::llama();
    let by_its_file = json!({ "quantization": { "quant_algo": "NVFP4" } }).to_string();
    fs::write(place.source().join("hf_quant_config.json"), by_its_file).unwrap();
    place.check_refused(&options(), &["quantized already"]);
}

#[test]
fn a_checkpoint_that_no_model_loads_is_refused_before_anything_is_written() {
    let (config, tensors) = llama();
    let with_config = |name: &str, value: Value| {
        let mut config = config.clone();
        config[name] = value;
        Place::with(&config, &tensors)
    };
    let without = |name: &str| {
        let mut tensors = tensors.clone();
        tensors.remove(name).unwrap();
        Place::with(&config, &tensors)
    };
    let bytes = Tensor { dtype: Dtype::U8, shape: vec![2, 64], bytes: vec![0; 128] };
    let cases = [
        (with_config("model_type", json!("llama9")), "llama9"),
        (with_config("model_type", json!("diffusion_gemma")), "diffusion_gemma"),
        (with_config("hidden_size", json!(32)), "model.layers.0"),
        (without("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight"),
        (Place::llama_with("model.extra.weight", Tensor::telling(&[4])), "model.extra.weight"),
        (Place::llama_with("lm_head.weight", bytes), "stored as U8"),
    ];
    for (place, word) in cases {
        let mut told = 0;
        let listen = &mut |_: ConvertProgress| {
            told += 1;
            ControlFlow::Continue(())
        };
        let error = convert(&place.source(), &place.out(), &options(), listen).unwrap_err();
        assert!(error.to_string().contains(word), "`{word}` is not in `{error}`");
        assert_eq!((told, place.left()), (0, BTreeSet::new()));
    }
    let nowhere = Place::llama();
    fs::remove_dir_all(nowhere.source()).unwrap();
    nowhere.check_refused(&options(), &["no model directory"]);
}

#[test]
fn a_conversion_that_is_stopped_anywhere_leaves_nothing() {
    let place = Place::llama();
    let mut steps = 0;
    let count = &mut |_: ConvertProgress| {
        steps += 1;
        ControlFlow::Continue(())
    };
    convert(&place.source(), &place.out(), &options(), count).unwrap();
    fs::remove_dir_all(place.out()).unwrap();
    assert_eq!(steps, 21);
    for last in 0..steps {
        let mut heard = 0;
        let stop = &mut |_: ConvertProgress| {
            heard += 1;
            if heard > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let error = convert(&place.source(), &place.out(), &options(), stop).unwrap_err();
        assert_eq!((error.code(), heard), (Code::ShuttingDown, last + 1));
        assert_eq!(place.left(), BTreeSet::new());
    }
}

#[test]
fn the_remains_of_a_killed_conversion_are_cleared() {
    let place = Place::llama();
    place.convert(&options()).unwrap();
    let whole = stored(&place.out());
    fs::remove_dir_all(place.out()).unwrap();
    let partial = place.root.path().join("out.partial");
    fs::create_dir(&partial).unwrap();
    for name in [".lock", "model-00001-of-00009.safetensors", "config.json"] {
        fs::write(partial.join(name), "half a file").unwrap();
    }
    place.convert(&options()).unwrap();
    assert_eq!(stored(&place.out()), whole);
    assert_eq!(place.left(), BTreeSet::from(["out".to_owned()]));
}

#[test]
fn a_directory_of_somebody_elses_is_not_cleared_to_write_there() {
    let place = Place::llama();
    let partial = place.root.path().join("out.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("thesis.tex"), "").unwrap();
    let error = place.convert(&options()).unwrap_err();
    assert!(error.message().contains("out.partial"), "{error}");
    assert_eq!(names(&partial), BTreeSet::from(["thesis.tex".to_owned()]));
}

#[test]
fn progress_ends_at_all_bytes_and_never_goes_back() {
    let place = Place::llama();
    let mut seen = Vec::new();
    let listen = &mut |progress: ConvertProgress| {
        seen.push(progress);
        ControlFlow::Continue(())
    };
    convert(&place.source(), &place.out(), &options(), listen).unwrap();
    let (_, tensors) = llama();
    let total_bytes: usize = tensors.values().map(|tensor| tensor.bytes.len()).sum();
    let last = ConvertProgress { done_bytes: total_bytes as u64, total_bytes: total_bytes as u64 };
    assert_eq!(seen.last(), Some(&last));
    assert!(seen.is_sorted_by_key(|progress| progress.done_bytes));
}

#[test]
fn bits_and_groups_that_cannot_be_are_refused_by_name() {
    let field = |bits, group_size| {
        let error = ConvertOptions::new(bits, group_size, None).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        error.param().unwrap().to_owned()
    };
    assert_eq!([field(3, 64), field(0, 64), field(16, 64)], ["bits"; 3]);
    assert_eq!([field(4, 16), field(8, 0), field(4, -64)], ["group_size"; 3]);
}
