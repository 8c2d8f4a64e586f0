//! How long it takes to learn which models there are: a cache of Hugging Face's tools with the headers of large
//! models, scanned by a library that knows nothing and by one that has looked before.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, json};
use slipstream_engine::clock::Clock;
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::hub::library::{Library, State};
use slipstream_engine::hub::places::Places;

/// What `slipstream bench-scan` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct ScanArguments {
    /// Models in the cache.
    #[arg(long, default_value_t = 500)]
    models: usize,
    /// Tensors in the headers of each: as many as a packed model of 8 billion numbers has.
    #[arg(long, default_value_t = 907)]
    tensors: usize,
    /// How often is scanned; the medians count.
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Print one JSON object instead of a line.
    #[arg(long)]
    json: bool,
}

/// A cache that goes when the measurement ends.
struct Cache(PathBuf);

impl Drop for Cache {
    fn drop(&mut self) {
        // What is left is in the system's folder for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures and prints.
pub(crate) fn run_scan(arguments: &ScanArguments) -> Result<()> {
    let cache = Cache(std::env::temp_dir().join(format!("slipstream-scan-{}", std::process::id())));
    for index in 0..arguments.models {
        write_snapshot(&cache.0.join("hub"), index, arguments.tensors)?;
    }
    let places = Places { models: cache.0.join("models"), hugging_face: vec![cache.0.join("hub")] };
    let clock = Clock::monotonic();
    let mut library = Library::open(places.clone());
    check_ready(&library, arguments.models)?;
    let scan_ms = median_ms(arguments.repeats, &clock, || {
        library = Library::open(places.clone());
    });
    let rescan_ms = median_ms(arguments.repeats, &clock, || drop(library.rescan()));
    match arguments.json {
        true => println!(
            "{}",
            json!({ "models": arguments.models, "scan_ms": scan_ms, "rescan_ms": rescan_ms })
        ),
        false => println!(
            "{} models of {} tensors: {scan_ms:.1} ms to scan, {rescan_ms:.1} ms to scan again",
            arguments.models, arguments.tensors
        ),
    }
    Ok(())
}

/// # Errors
/// `Internal` when a model is not what it was made to be: the time would mean nothing.
fn check_ready(library: &Library, models: usize) -> Result<()> {
    let ready = library.entries().filter(|entry| entry.state == State::Ready).count();
    match ready == models {
        true => Ok(()),
        false => {
            let other = library.entries().find_map(|entry| entry.state.reason());
            let message = format!("{ready} of {models} models are ready: {other:?}");
            Err(Error::new(Code::Internal, message))
        }
    }
}

fn median_ms(repeats: usize, clock: &Clock, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..repeats.max(1))
        .map(|_| {
            let started = clock.now();
            run();
            clock.now() - started
        })
        .collect();
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// A snapshot of a packed Qwen3-8B, whose data are holes.
fn write_snapshot(cache: &Path, index: usize, tensors: usize) -> Result<()> {
    let repository = cache.join(format!("models--owner--model-{index}"));
    let (blobs, commit) = (repository.join("blobs"), format!("{index:040x}"));
    let snapshot = repository.join("snapshots").join(&commit);
    for folder in [&blobs, &snapshot, &repository.join("refs")] {
        fs::create_dir_all(folder)?;
    }
    fs::write(repository.join("refs/main"), &commit)?;
    let template = "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}";
    let text = |value: serde_json::Value| value.to_string().into_bytes();
    let small = [
        ("config.json", text(config())),
        ("generation_config.json", text(json!({ "temperature": 0.6, "eos_token_id": [1, 2] }))),
        ("tokenizer_config.json", text(json!({ "chat_template": template.repeat(50) }))),
        ("model.safetensors.index.json", text(index_of(tensors))),
    ];
    for (name, content) in small {
        fs::write(blobs.join(name), content)?;
    }
    write_shard(&blobs.join("model-00001-of-00002.safetensors"), 0..tensors / 2)?;
    write_shard(&blobs.join("model-00002-of-00002.safetensors"), tensors / 2..tensors)?;
    write_tokenizer(&blobs.join("tokenizer.json"))?;
    for blob in fs::read_dir(&blobs)? {
        let name = blob?.file_name();
        link(&Path::new("../../blobs").join(&name), &snapshot.join(&name))?;
    }
    Ok(())
}

#[cfg(unix)]
fn link(target: &Path, path: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(target, path)?)
}

#[cfg(not(unix))]
fn link(target: &Path, path: &Path) -> Result<()> {
    let source = path.parent().unwrap_or(path).join(target);
    Ok(fs::copy(source, path).map(drop)?)
}

fn config() -> serde_json::Value {
    json!({
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12_288,
        "vocab_size": 151_936, "max_position_embeddings": 40_960, "rope_theta": 1_000_000,
        "quantization": { "bits": 4, "group_size": 64 },
    })
}

fn name(tensor: usize) -> String {
    let part = ["weight", "scales", "biases"][tensor % 3];
    format!("model.layers.{}.self_attn.projection_{}.{part}", tensor / 25, tensor % 25)
}

fn index_of(tensors: usize) -> serde_json::Value {
    let shard =
        |tensor| format!("model-0000{}-of-00002.safetensors", 1 + tensor * 2 / tensors.max(1));
    let map: Map<_, _> = (0..tensors).map(|tensor| (name(tensor), shard(tensor).into())).collect();
    json!({ "metadata": { "total_size": 1 }, "weight_map": map })
}

fn write_shard(path: &Path, tensors: std::ops::Range<usize>) -> Result<()> {
    const TENSOR_BYTES: usize = 1 << 20;
    let mut end = 0;
    let mut entries = Map::new();
    for tensor in tensors {
        let range = [end, end + TENSOR_BYTES];
        end += TENSOR_BYTES;
        let entry = json!({ "dtype": "U32", "shape": [512, TENSOR_BYTES / 4 / 512], "data_offsets": range });
        entries.insert(name(tensor), entry);
    }
    let header = serde_json::to_vec(&entries).unwrap_or_default();
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    Ok(file.set_len((8 + header.len() + end) as u64)?)
}

/// A tokenizer's file by its beginning, its end and its length.
fn write_tokenizer(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(b"{\n  \"model\": {")?;
    file.seek(SeekFrom::Start(11 << 20))?;
    Ok(file.write_all(b"    ]\n  }\n}\n")?)
}
