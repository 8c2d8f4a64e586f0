//! Checkpoints in which anything may be wrong: a config of any values, headers of any bytes. Each loads, or is
//! refused by an error that says what is wrong; nothing else ever happens.
//!
//! A failing round prints the seed and what was changed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipstream_engine::error::{Code, Result};
use slipstream_engine::mlx::{Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions, Loaded};
use slipstream_tests::random::Random;

use crate::goldens::{checkpoints, directory};

/// A copy of a tiny checkpoint without its tokenizer, to be damaged.
struct Copy {
    root: tempfile::TempDir,
    config: Value,
    weights: Vec<u8>,
}

impl Copy {
    fn of(name: &str) -> Self {
        let source = directory().join(name);
        let root = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors", "generation_config.json"] {
            if source.join(file).is_file() {
                fs::copy(source.join(file), root.path().join(file)).unwrap();
            }
        }
        let config = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap());
        let weights = fs::read(source.join("model.safetensors")).unwrap();
        Self { root, config: config.unwrap(), weights }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Loads it, and runs it where it loads: a forward may fail, but not otherwise.
    #[track_caller]
    fn check(&self, what: &str) -> bool {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            load(self.root.path()).map(|loaded| drop(forward(&loaded)))
        }));
        match outcome {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                // A name, or the numbers that contradict each other.
                let message = error.message();
                let named =
                    message.contains(|letter: char| letter == '`' || letter.is_ascii_digit());
                assert!(
                    error.code() == Code::BadModel && named,
                    "{what}: {:?} {error}",
                    error.code()
                );
                false
            }
            Err(_) => panic!("{what}: panicked"),
        }
    }
}

fn load(directory: &Path) -> Result<Loaded> {
    let back_end = Device::cpu().back_end();
    model::load(directory, LoadOptions { dtype: Some(Dtype::Float32), back_end })
}

fn forward(loaded: &Loaded) -> Result<Vec<f32>> {
    let mut caches = loaded.model.new_caches();
    let hidden = loaded.model.hidden(&ops::token_matrix(&[1, 2, 3], 1), &mut caches)?;
    ops::read_f32(&loaded.model.logits(&hidden)?)
}

/// Values that no field, or hardly one, can have.
fn hostile() -> Vec<Value> {
    let numbers = [
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(5),
        json!(1_000_003),
        json!(2_147_483_647),
        json!(2_147_483_648_u64),
        json!(u64::MAX),
        json!(1e-300),
        json!(0.5),
        json!(1e300),
        json!(-1e300),
    ];
    let others = [
        json!(null),
        json!(true),
        json!(false),
        json!(""),
        json!("full_attention"),
        json!([]),
        json!({}),
        json!([0]),
        json!([-1, 2_147_483_647]),
        json!([["a"]]),
        json!({ "type": "linear" }),
        json!({ "rope_type": "yarn", "factor": 0 }),
        json!({ "bits": 4, "group_size": 32 }),
    ];
    numbers.into_iter().chain(others).collect()
}

/// The place of every value below `value`.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
            fields.iter().map(|(name, value)| (format!("{at}/{}", escaped(name)), value)).collect()
        }
        Value::Array(values) => values
            .iter()
            .enumerate()
            .map(|(index, value)| (format!("{at}/{index}"), value))
            .collect(),
        _ => Vec::new(),
    };
    for (place, value) in below {
        places(value, &place, found);
        found.push(place);
    }
}

/// Writes the weights with another header.
fn write_header(copy: &Copy, header: &[u8]) {
    let (old, data) = parts(&copy.weights);
    assert!(!old.is_empty());
    let length = (header.len() as u64).to_le_bytes();
    fs::write(copy.path("model.safetensors"), [&length, header, data].concat()).unwrap();
}

/// The header of a file, and its numbers.
fn parts(file: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    rest.split_at(length)
}

/// A header in which one tensor, or what is said of all, is another.
fn damaged_header(random: &mut Random, header: &[u8]) -> (String, Vec<u8>) {
    let mut json: Value = serde_json::from_slice(header).unwrap();
    let names: Vec<String> = json.as_object().unwrap().keys().cloned().collect();
    let name = random.pick(&names).clone();
    let entry = &mut json[&name];
    let what = match random.between(0, 6) {
        0 => {
            *entry = random.pick(&hostile()).clone();
            "something else"
        }
        1 => {
            entry["dtype"] = random.pick(&hostile()).clone();
            "a type that is none"
        }
        2 => {
            entry["dtype"] = (*random.pick(&DTYPES)).into();
            "another type"
        }
        3 => {
            let side = random.pick(&hostile()).clone();
            entry["shape"] = json!([side, 1]);
            "another side"
        }
        4 => {
            entry["shape"] = json!(other_shape(random, &entry["shape"]));
            "as many numbers in another shape"
        }
        5 => {
            let end = random.pick(&hostile()).clone();
            entry["data_offsets"] = json!([entry["data_offsets"][0], end]);
            "another end"
        }
        _ => {
            let (_, entry) = json.as_object_mut().unwrap().shift_remove_entry(&name).unwrap();
            json[random.pick(&names)] = entry;
            "another name"
        }
    };
    (format!("`{name}` is {what}"), json.to_string().into_bytes())
}

const DTYPES: [&str; 16] = [
    "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F4", "I16", "U16", "F16", "BF16", "I32",
    "U32", "F32", "F64", "C64",
];

/// A shape of as many numbers, of up to ten sides.
fn other_shape(random: &mut Random, shape: &Value) -> Vec<u64> {
    let sides = shape.as_array().cloned().unwrap_or_default();
    let mut left: u64 = sides.iter().filter_map(Value::as_u64).product();
    let mut other = Vec::new();
    for _ in 0..random.between(0, 9) {
        let side = if left.is_multiple_of(2) && random.once_in(2) { 2 } else { 1 };
        other.push(side);
        left /= side;
    }
    other.insert(random.size(0, other.len()), left);
    other
}

/// A header of which some bytes are others.
fn changed_bytes(random: &mut Random, header: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    for _ in 0..random.between(1, 3) {
        let at = random.size(0, bytes.len() - 1);
        bytes[at] = *random.pick(b"\"{}[],:0123456789-eE.\\ntfu\0\xff /~ax");
    }
    bytes
}

#[test]
fn headers_of_any_tensors_load_or_are_refused_by_name() {
    Device::cpu();
    for seed in 0..HEADER_ROUNDS {
        let mut random = Random::new(seed);
        let copy = Copy::of(random.pick::<String>(&checkpoints()));
        let (what, header) = damaged_header(&mut random, parts(&copy.weights).0);
        write_header(&copy, &header);
        copy.check(&format!("seed {seed}: {what}"));
    }
}

#[test]
fn headers_of_any_bytes_load_or_are_refused_by_name() {
    Device::cpu();
    for seed in 0..HEADER_ROUNDS {
        let mut random = Random::new(seed);
        let copy = Copy::of(random.pick::<String>(&checkpoints()));
        let header = changed_bytes(&mut random, parts(&copy.weights).0);
        write_header(&copy, &header);
        copy.check(&format!("seed {seed}"));
    }
}

/// Rounds of each kind of damage to headers.
const HEADER_ROUNDS: u64 = 1000;
/// Fields of each checkpoint that are given another value.
const FIELD_ROUNDS: usize = 25;

#[test]
fn configs_of_any_values_load_or_are_refused_by_name() {
    Device::cpu();
    let mut refused = 0;
    for (seed, name) in (0..).zip(checkpoints()) {
        let mut random = Random::new(seed);
        let copy = Copy::of(&name);
        let mut found = Vec::new();
        places(&copy.config, "", &mut found);
        for _ in 0..FIELD_ROUNDS {
            let (place, value) = (random.pick(&found), random.pick(&hostile()).clone());
            let mut config = copy.config.clone();
            *config.pointer_mut(place).unwrap() = value.clone();
            fs::write(copy.path("config.json"), config.to_string()).unwrap();
            refused += usize::from(!copy.check(&format!("{name}: `{place}` is {value}")));
        }
    }
    assert!(refused > 300, "{refused}");
}
