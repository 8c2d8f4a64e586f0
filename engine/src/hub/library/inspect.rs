//! What a directory holds: a ready model, or what keeps it from being one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::de::IgnoredAny;

use super::candidates::{Candidate, is_weights};
use super::entry::{Capabilities, Entry, Facts, Origin, State};
use super::stamp::Stamp;
use crate::error::{Code, Error, Result};
use crate::hub::manifest::Manifest;
use crate::mlx::shards::{self, INDEX_FILE, SINGLE_FILE, ShardFault, TensorHeader};
use crate::model::ModelConfig;
use crate::model::outline::{Outline, WeightPacking, WeightTally};
use crate::output::AnswerFormat;
use crate::tokenizer::ChatFiles;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
/// What an embedding model has: the first makes a directory one, the others are then needed too.
const EMBEDDING_FILES: [&str; 2] = ["modules.json", "1_Pooling/config.json"];
/// Ends of the names of weights that are not read.
const FOREIGN_WEIGHTS: [&str; 5] = [".bin", ".pt", ".pth", ".gguf", ".npz"];
/// Small JSON files, which are read whole.
const SMALL_FILES: [&str; 3] = [CONFIG, INDEX_FILE, "tokenizer_config.json"];
/// Bytes of a small JSON file at most.
const SMALL_BYTES_MAX: u64 = 32 << 20;
/// Bytes at the end of a large tokenizer's file that tell whether it was cut.
const TAIL_BYTES: u64 = 64;
/// Bytes of a file that is read whole in any place.
const READ_WHOLE_BYTES_MAX: u64 = 256 << 10;

/// The model in `directory`, which lies in none of the places.
///
/// # Errors
/// `BadModel` when there is no such directory, or nothing of a model in it.
pub fn inspect(directory: &Path) -> Result<Entry> {
    let no_model = || {
        let message = format!("no model at {}", super::shown(directory));
        Error::new(Code::BadModel, message)
            .with_hint("expected a directory with config.json, tokenizer.json and safetensors")
    };
    let path = directory.canonicalize().map_err(|_| no_model())?;
    let id = path.file_name().map_or("model".into(), |name| name.to_string_lossy());
    let candidate = Candidate {
        id: id.into_owned(),
        directory: directory.to_owned(),
        origin: Origin::Own,
        commit: None,
    };
    let stamp = Stamp::of(directory).ok_or_else(no_model)?;
    entry(&candidate, &stamp).ok_or_else(no_model)
}

/// The entry at a candidate with this stamp; `None` where there is nothing of a model.
pub(super) fn entry(candidate: &Candidate, stamp: &Stamp) -> Option<Entry> {
    let names: Vec<&str> = stamp.files.iter().map(|file| file.name.as_str()).collect();
    if !names.iter().any(|name| *name == CONFIG || is_weights(name)) {
        return None;
    }
    let weights = Weights::read(&candidate.directory, stamp);
    let (state, facts) = match facts(&candidate.directory, &weights) {
        Ok(facts) => (State::Ready, Some(facts)),
        Err(state) => (state, None),
    };
    let state = match missing(candidate, stamp, weights) {
        Err(damage) => State::Damaged(damage),
        Ok(missing) if missing.is_empty() => state,
        Ok(missing) => match (foreign_weights(stamp), state) {
            // What is not run need not be whole.
            (_, state @ State::Unsupported(_)) => state,
            (Some(reason), _) => State::Unsupported(reason),
            (None, _) => State::Incomplete(missing),
        },
    };
    Some(Entry {
        id: candidate.id.clone(),
        directory: candidate.directory.clone(),
        origin: candidate.origin,
        commit: candidate.commit.clone(),
        disk_bytes: stamp.bytes(),
        state,
        facts,
    })
}

/// The weights that there are instead of safetensors, where there are none of these.
fn foreign_weights(stamp: &Stamp) -> Option<String> {
    let names = || stamp.files.iter().map(|file| file.name.as_str());
    if names().any(is_weights) {
        return None;
    }
    let foreign = names().find(|name| FOREIGN_WEIGHTS.iter().any(|end| name.ends_with(end)))?;
    Some(format!("its weights are no safetensors but `{foreign}`"))
}

/// Files that are missing or cut short.
///
/// # Errors
/// What is wrong with a file that says which there should be.
fn missing(
    candidate: &Candidate,
    stamp: &Stamp,
    weights: Weights,
) -> std::result::Result<Vec<String>, String> {
    let (directory, vouched) = (candidate.directory.as_path(), candidate.commit.is_some());
    let mut missing: Vec<String> = stamp.dangling().map(str::to_owned).collect();
    for name in [CONFIG, TOKENIZER] {
        if stamp.file(name).is_none() {
            missing.push(name.to_owned());
        }
    }
    missing.extend(weights.missing()?);
    missing.extend(cut_by_manifest(directory, stamp)?);
    if stamp.file(TOKENIZER).is_some() && !is_whole_json(&directory.join(TOKENIZER), vouched) {
        missing.push(format!("{TOKENIZER} (cut short)"));
    }
    if stamp.file(EMBEDDING_FILES[0]).is_some() {
        let cut = EMBEDDING_FILES.iter().filter(|name| !parses(&directory.join(name)));
        missing.extend(cut.map(|name| (*name).to_owned()));
    }
    missing.sort();
    missing.dedup();
    Ok(missing)
}

/// Whether a file is there and is JSON.
fn parses(path: &Path) -> bool {
    let file = std::fs::read(path).ok();
    file.is_some_and(|file| serde_json::from_slice::<IgnoredAny>(&file).is_ok())
}

/// The headers of a checkpoint's shards, and what keeps others from being read.
#[derive(Debug, Default)]
struct Weights {
    tensors: Vec<TensorHeader>,
    missing: Vec<String>,
    damage: Option<String>,
}

impl Weights {
    fn read(directory: &Path, stamp: &Stamp) -> Self {
        let mut weights = Self::default();
        if stamp.file(INDEX_FILE).is_none() && stamp.file(SINGLE_FILE).is_none() {
            let sharded = stamp.files.iter().any(|file| is_weights(&file.name));
            let name = if sharded { INDEX_FILE } else { SINGLE_FILE };
            weights.missing.push(name.to_owned());
            return weights;
        }
        match shards::shard_names(directory) {
            Ok(names) => names.into_iter().for_each(|name| weights.add(directory, stamp, name)),
            Err(error) => weights.damage = Some(error.message().to_owned()),
        }
        weights
    }

    fn add(&mut self, directory: &Path, stamp: &Stamp, name: String) {
        if stamp.file(&name).is_none() {
            self.missing.push(name);
            return;
        }
        let path = directory.join(&name);
        match shards::read_header(&path) {
            Ok(tensors) => self.tensors.extend(tensors),
            Err(ShardFault::Short { .. }) => self.missing.push(format!("{name} (cut short)")),
            Err(fault) => self.damage = Some(fault.of(&path).message().to_owned()),
        }
    }

    /// Shards that are missing or shorter than their headers say.
    ///
    /// # Errors
    /// What is wrong with one, or with their index.
    fn missing(self) -> std::result::Result<Vec<String>, String> {
        self.damage.map_or(Ok(self.missing), Err)
    }
}

/// Files of a download of ours that are gone or of another length than the manifest says.
fn cut_by_manifest(directory: &Path, stamp: &Stamp) -> std::result::Result<Vec<String>, String> {
    let manifest = Manifest::read(directory).map_err(|error| error.to_string())?;
    let files = manifest.iter().flat_map(|manifest| &manifest.files);
    let cut = files.filter_map(|file| {
        let name = file.path.as_str();
        let bytes = match name.contains('/') {
            true => std::fs::metadata(directory.join(name)).ok().map(|it| it.len()),
            false => stamp.file(name).map(|content| content.bytes),
        };
        match bytes {
            None => Some(name.to_owned()),
            Some(bytes) if bytes < file.bytes => Some(format!("{name} (cut short)")),
            Some(_) => None,
        }
    });
    Ok(cut.collect())
}

/// Whether a tokenizer's file is all there. What was put into a folder by hand is read whole. Other places vouch
/// for lengths: a manifest, or a cache that names blobs once they are there; so of a large file there the end will
/// do, which is two brackets, or one at the beginning of a line.
fn is_whole_json(path: &Path, vouched: bool) -> bool {
    let large = std::fs::metadata(path).is_ok_and(|file| file.len() > READ_WHOLE_BYTES_MAX);
    (vouched && large && ends_whole(path).unwrap_or(false)) || parses(path)
}

fn ends_whole(path: &Path) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let mut head = [0u8; 2];
    file.read_exact(&mut head)?;
    file.seek(SeekFrom::End(-(TAIL_BYTES as i64)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let tail = tail.trim_ascii_end();
    Ok(match &head {
        b"{\n" => tail.ends_with(b"\n}"),
        _ => tail.ends_with(b"}}") || tail.ends_with(b"]}"),
    })
}

/// What the files of the model in `directory` say.
///
/// # Errors
/// Why they cannot be served.
fn facts(directory: &Path, weights: &Weights) -> std::result::Result<Facts, State> {
    check_small(directory)?;
    let outline = read_outline(directory)?;
    let capabilities =
        capabilities(directory).map_err(|error| State::Damaged(error.message().to_owned()))?;
    if capabilities.embeds && !outline.embeds() {
        let model_type = outline.model_type();
        let reason = format!("embedding models of type `{model_type}` are not supported");
        return Err(State::Unsupported(reason));
    }
    let weights = WeightTally::of(&outline, weights.tensors.iter());
    Ok(Facts { outline, weights, capabilities })
}

fn check_small(directory: &Path) -> std::result::Result<(), State> {
    let large = SMALL_FILES.iter().find(|name| {
        std::fs::metadata(directory.join(name)).is_ok_and(|file| file.len() > SMALL_BYTES_MAX)
    });
    match large {
        None => Ok(()),
        Some(name) => {
            Err(State::Damaged(format!("`{name}` is larger than {SMALL_BYTES_MAX} bytes")))
        }
    }
}

/// The outline of the model in `directory`.
fn read_outline(directory: &Path) -> std::result::Result<Outline, State> {
    let damaged = |error: Error| State::Damaged(error.message().to_owned());
    let config = ModelConfig::read(directory).map_err(damaged)?;
    let model_type = config.model_type().map_err(damaged)?;
    if !Outline::model_types().any(|known| known == model_type) {
        let reason = format!("model type `{}` is not supported", model_type.escape_debug());
        return Err(State::Unsupported(reason));
    }
    let text = config.clone().text_part().map_err(damaged)?;
    WeightPacking::of_config(&text)
        .map_err(|error| State::Unsupported(error.message().to_owned()))?;
    Outline::of_config(&config).map_err(damaged)
}

/// What a model can do, told from its small files.
fn capabilities(directory: &Path) -> Result<Capabilities> {
    let files = ChatFiles::read(directory)?;
    // Its tokens are not known here: a format that only they tell is told when the model is loaded.
    let format = AnswerFormat::detect(files.template.as_deref().unwrap_or(""), |_| false);
    let format = match &files.tool_parser {
        Some(name) => format.with_tool_parser(name),
        None => format,
    };
    let embeds = directory.join(EMBEDDING_FILES[0]).is_file();
    Ok(Capabilities {
        chats: files.template.is_some() && !embeds,
        tools: format.tools.is_some() && !embeds,
        reasons: (format.reasoning.is_some() || format.messages.is_some()) && !embeds,
        embeds,
    })
}
