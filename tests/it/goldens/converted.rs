//! Quantized checkpoints that we make, beside what mlx-lm's converter makes of the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as StoredDtype, TensorView};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use slipstream_engine::hub::convert::{ConvertOptions, convert};
use slipstream_engine::mlx::{Device, Dtype, Packed, PackedFormat, PackedMode, Weights, tensor};
use slipstream_engine::model::Family;

use super::replay::{Case, replay};

#[derive(Deserialize)]
struct Golden {
    conversions: Vec<Conversion>,
}

#[derive(Deserialize)]
struct Conversion {
    bits: i32,
    group_size: i32,
    dtype: Option<String>,
    /// What `config.json` says of packing.
    quantization: Value,
    /// The digest of each tensor.
    tensors: BTreeMap<String, String>,
    /// What the result says in bf16, where a processor can run it.
    answer: Option<Case>,
}

impl Conversion {
    fn options(&self) -> ConvertOptions {
        let dtype = self.dtype.as_deref().map(|name| match name {
            "float16" => "f16".parse().unwrap(),
            "float32" => "f32".parse().unwrap(),
            other => panic!("{other}"),
        });
        ConvertOptions::new(self.bits, self.group_size, dtype).unwrap()
    }

    fn title(&self, name: &str) -> String {
        format!("{name} in {} bits of {} as {:?}", self.bits, self.group_size, self.dtype)
    }
}

/// A checkpoint to convert, and where its conversions go.
struct Place {
    root: tempfile::TempDir,
    source: PathBuf,
}

impl Place {
    fn of(name: &str) -> Self {
        Device::cpu();
        let root = tempfile::tempdir().unwrap();
        let stored = super::directory().join(name);
        let config: Value = super::read_json(&stored.join("config.json"));
        let source = match config.get("quantization") {
            Some(quantization) => unpacked(&stored, &config, quantization, root.path()),
            None => stored,
        };
        Self { root, source }
    }

    fn converted(&self, conversion: &Conversion) -> PathBuf {
        let Conversion { bits, group_size, dtype, .. } = conversion;
        let out = self.root.path().join(format!("{bits}-{group_size}-{dtype:?}"));
        let go_on = &mut |_| ControlFlow::Continue(());
        convert(&self.source, &out, &conversion.options(), go_on).unwrap();
        out
    }
}

/// The checkpoint with its matrices dense, in bf16.
fn unpacked(stored: &Path, config: &Value, quantization: &Value, root: &Path) -> PathBuf {
    let mut weights = Weights::load(stored).unwrap();
    let scaled = weights.iter().filter_map(|(name, _)| name.strip_suffix(".scales"));
    let scaled: Vec<String> = scaled.map(str::to_owned).collect();
    for path in scaled {
        let mut part = |part: &str| weights.take_optional(&format!("{path}.{part}"));
        let (values, scales) = (part("weight").unwrap(), part("scales").unwrap());
        let format = format_of(quantization, &path);
        let packed = Packed { values, scales, biases: part("biases"), format };
        weights.put(format!("{path}.weight"), packed.unpack(Dtype::Bfloat16).unwrap());
    }
    let directory = root.join("unpacked");
    fs::create_dir(&directory).unwrap();
    let mut config = config.clone();
    for name in ["quantization", "quantization_config"] {
        config.as_object_mut().unwrap().remove(name);
    }
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::copy(stored.join("tokenizer.json"), directory.join("tokenizer.json")).unwrap();
    write_weights(&weights, &directory.join("model.safetensors"));
    directory
}

/// How the module `path` is packed: as its entry says, else as the general one.
fn format_of(quantization: &Value, path: &str) -> PackedFormat {
    let entry = quantization.get(path).filter(|entry| entry.is_object()).unwrap_or(quantization);
    let mode = entry.get("mode").map_or("affine", |mode| mode.as_str().unwrap());
    let mode = PackedMode::ALL.into_iter().find(|known| known.name() == mode).unwrap();
    let count = |name: &str| entry[name].as_i64().unwrap() as i32;
    PackedFormat { mode, group_size: count("group_size"), bits: count("bits") }
}

fn write_weights(weights: &Weights, path: &Path) {
    let tensors: Vec<_> = weights
        .iter()
        .map(|(name, array)| {
            let shape: Vec<usize> = array.shape().iter().map(|side| *side as usize).collect();
            let dtype = match array.dtype() {
                Dtype::Float32 => StoredDtype::F32,
                Dtype::Bfloat16 => StoredDtype::BF16,
                other => panic!("`{name}` is {other:?}"),
            };
            (name.to_owned(), dtype, shape, tensor::read(array).unwrap())
        })
        .collect();
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// The checkpoints that mlx-lm converted.
fn goldens() -> Vec<(String, Golden)> {
    let read = |name: String| {
        let path = super::directory().join(&name).join("converted.json");
        path.is_file().then(|| (name, super::read_json(&path)))
    };
    super::checkpoints().into_iter().filter_map(read).collect()
}

/// The beginning of the SHA-256 of type, shape and numbers, as goldens/generate/converted.py makes it.
fn digest(view: &TensorView<'_>) -> String {
    let mut hash = Sha256::new();
    let shape: Vec<String> = view.shape().iter().map(usize::to_string).collect();
    hash.update(format!("{:?} [{}] ", view.dtype(), shape.join(", ")));
    hash.update(view.data());
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digests(directory: &Path) -> BTreeMap<String, String> {
    let file = fs::read(directory.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    tensors.iter().map(|(name, view)| (name.to_owned(), digest(&view))).collect()
}

#[test]
fn a_converted_checkpoint_has_the_tensors_of_mlx_lms_byte_for_byte() {
    let mut packed_tensors = 0;
    for (name, golden) in goldens() {
        let place = Place::of(&name);
        for conversion in &golden.conversions {
            let out = place.converted(conversion);
            let title = conversion.title(&name);
            let digests = digests(&out);
            assert!(digests.keys().eq(conversion.tensors.keys()), "{title}: {digests:#?}");
            for (name, digest) in &digests {
                assert_eq!(digest, &conversion.tensors[name], "{title}: {name}");
            }
            let config: Value = super::read_json(&out.join("config.json"));
            assert_eq!(config["quantization"], conversion.quantization, "{title}");
            assert_eq!(config["quantization_config"], conversion.quantization, "{title}");
            packed_tensors += digests.keys().filter(|name| name.ends_with(".scales")).count();
        }
    }
    assert!(packed_tensors > 1000, "{packed_tensors}");
}

#[test]
fn a_converted_checkpoint_says_what_mlx_lms_says() {
    let mut answers = 0;
    for (name, golden) in goldens() {
        let place = Place::of(&name);
        for conversion in &golden.conversions {
            if let Some(case) = &conversion.answer {
                // It holds each token against the case's.
                replay(case, &place.converted(conversion), Dtype::Bfloat16);
                answers += 1;
            }
        }
    }
    assert!(answers > 60, "{answers}");
}

#[test]
fn every_family_that_mlx_lm_has_is_among_them() {
    let model_type = |name: &str| {
        let config: Value = super::read_json(&super::directory().join(name).join("config.json"));
        config["model_type"].as_str().unwrap().to_owned()
    };
    let converted: BTreeSet<String> = goldens().iter().map(|(name, _)| model_type(name)).collect();
    let known = Family::all().iter().map(|family| family.model_type.to_owned());
    let left: Vec<String> = known.filter(|name| !converted.contains(name)).collect();
    assert_eq!(left, ["diffusion_gemma"]);
}
