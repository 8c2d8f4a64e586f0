//! Reading safetensors: one file or shards with an index.
//!
//! Each file's header is checked against the file's size before MLX sees it, because MLX reads
//! tensors lazily: a truncated shard would otherwise fail in the middle of a generation.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};
use safetensors::tensor::Metadata;

use crate::error::{Code, Error, Result};

const INDEX_FILE: &str = "model.safetensors.index.json";
const SINGLE_FILE: &str = "model.safetensors";
const HEADER_BYTES_MAX: u64 = 100 * 1024 * 1024;

/// Ends of the names of tensors that stay in the type in which they are stored, because mlx-lm 0.32.2's
/// `cast_predicate`s keep them: the models add them to f32 numbers.
const KEPT_TYPES: [&str; 1] = ["e_score_correction_bias"];

/// Named arrays of a checkpoint. Layers take what is theirs; nothing is copied.
#[derive(Debug)]
pub struct Weights {
    arrays: HashMap<String, Array>,
    directory: PathBuf,
    /// What they were cast to.
    cast: Option<Dtype>,
}

impl Weights {
    /// Reads every tensor of the checkpoint in `directory` (lazily: MLX reads data at evaluation).
    ///
    /// # Errors
    /// `BadModel` naming the file that is missing, truncated or not safetensors.
    pub fn load(directory: &Path) -> Result<Self> {
        let mut arrays = HashMap::new();
        for file in shard_files(directory)? {
            check_header(&file)?;
            arrays.extend(Array::load_safetensors(&file).map_err(|error| {
                Error::from(error).while_doing(format_args!("failed to load `{}`", file.display()))
            })?);
        }
        Ok(Self { arrays, directory: directory.to_owned(), cast: None })
    }

    /// A checkpoint of arrays that are at hand, for tests.
    pub fn of(arrays: impl IntoIterator<Item = (String, Array)>) -> Self {
        let directory = PathBuf::from("memory");
        Self { arrays: arrays.into_iter().collect(), directory, cast: None }
    }

    /// Whether a tensor of that name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// The tensor `name`, left where it is.
    ///
    /// # Errors
    /// `BadModel` when it is missing.
    pub fn get(&self, name: &str) -> Result<&Array> {
        self.arrays.get(name).ok_or_else(|| self.missing(name))
    }

    /// Holds that the tensors `names` exist: for those that a layer takes only where there are any.
    ///
    /// # Errors
    /// `BadModel` naming the first that is missing.
    pub fn require(&self, names: impl IntoIterator<Item = String>) -> Result<()> {
        names.into_iter().try_for_each(|name| self.get(&name).map(drop))
    }

    /// Takes the tensor `name` out.
    ///
    /// # Errors
    /// `BadModel` when it is missing.
    pub fn take(&mut self, name: &str) -> Result<Array> {
        self.take_optional(name).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Error {
        let directory = self.directory.display();
        Error::new(Code::BadModel, format!("tensor `{name}` is missing in `{directory}`"))
    }

    /// Takes the tensor `name` out if it exists.
    pub fn take_optional(&mut self, name: &str) -> Option<Array> {
        self.arrays.remove(name)
    }

    /// Takes the tensor `name` out and checks its shape.
    ///
    /// # Errors
    /// `BadModel` when it is missing or of another shape.
    pub fn take_shaped(&mut self, name: &str, shape: &[i32]) -> Result<Array> {
        let array = self.take(name)?;
        if array.shape() == shape {
            return Ok(array);
        }
        Err(Error::new(
            Code::BadModel,
            format!("tensor `{name}` has shape {:?}, but the config says {shape:?}", array.shape()),
        ))
    }

    /// Gives every tensor the name that `name_of` says, and drops those that it has none for.
    ///
    /// # Errors
    /// `BadModel` when two tensors would have one name.
    pub fn rename(&mut self, name_of: impl Fn(&str) -> Option<String>) -> Result<()> {
        for (name, array) in std::mem::take(&mut self.arrays) {
            let Some(new_name) = name_of(&name) else { continue };
            if self.arrays.insert(new_name.clone(), array).is_some() {
                let directory = self.directory.display();
                let message = format!("two tensors in `{directory}` are `{new_name}`");
                return Err(Error::new(Code::BadModel, message));
            }
        }
        Ok(())
    }

    /// Puts `array` in under `name`.
    pub fn put(&mut self, name: String, array: Array) {
        self.arrays.insert(name, array);
    }

    /// Casts floating-point tensors to `dtype`; packed integers stay, and so do the few numbers that
    /// need their own type.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn cast(&mut self, dtype: Dtype) -> Result<()> {
        self.cast = Some(dtype);
        for (name, array) in &mut self.arrays {
            let kept = KEPT_TYPES.iter().any(|end| name.ends_with(end));
            if !kept && array.dtype().is_float() && array.dtype() != dtype {
                *array = array.as_dtype(dtype)?;
            }
        }
        Ok(())
    }

    /// The type that floating-point weights were cast to, else the one that most of them have.
    pub fn dtype(&self) -> Option<Dtype> {
        let floats = self.arrays.values().filter(|array| array.dtype().is_float());
        self.cast.or_else(|| floats.max_by_key(|array| array.size()).map(Array::dtype))
    }

    /// Bytes of a number in the type that most floating-point weights have: what activations are made
    /// of; those of f32 when there are none.
    pub fn float_bytes(&self) -> u64 {
        let floats = self.arrays.values().filter(|array| array.dtype().is_float());
        floats.max_by_key(|array| array.size()).map_or(4, |array| array.item_size() as u64)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.arrays.values().map(|array| array.nbytes() as u64).sum()
    }

    /// Every array, to evaluate them at once.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.arrays.values()
    }
}

fn shard_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let index = directory.join(INDEX_FILE);
    if index.is_file() {
        return indexed_files(directory, &index);
    }
    let single = directory.join(SINGLE_FILE);
    if single.is_file() {
        return Ok(vec![single]);
    }
    Err(Error::new(Code::BadModel, format!("no weights in `{}`", directory.display()))
        .with_hint(format!("expected `{SINGLE_FILE}` or `{INDEX_FILE}` with its shards")))
}

fn indexed_files(directory: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    let bad = |what: String| Error::new(Code::BadModel, format!("`{}`: {what}", index.display()));
    let text = std::fs::read_to_string(index).map_err(|error| bad(error.to_string()))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| bad("has no `weight_map` object".to_owned()))?;
    let names: BTreeSet<&str> = map.values().filter_map(|name| name.as_str()).collect();
    names.into_iter().map(|name| shard_path(directory, name).map_err(bad)).collect()
}

fn shard_path(directory: &Path, name: &str) -> std::result::Result<PathBuf, String> {
    if name.contains(['/', '\\']) || name == ".." {
        return Err(format!("shard name `{name}` leaves the directory"));
    }
    let path = directory.join(name);
    if path.is_file() { Ok(path) } else { Err(format!("shard `{name}` is missing")) }
}

/// Checks that the file's size is what its header says.
fn check_header(path: &Path) -> Result<()> {
    let bad = |what: String| {
        Error::new(Code::BadModel, format!("failed to load `{}`: {what}", path.display()))
    };
    let io = |error: std::io::Error| bad(error.to_string());
    let mut file = File::open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    let mut prefix = [0u8; 8];
    file.read_exact(&mut prefix).map_err(|_| bad(format!("only {file_bytes} bytes long")))?;
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES_MAX || header_bytes.saturating_add(8) > file_bytes {
        return Err(bad(format!("header of {header_bytes} bytes in a file of {file_bytes}")));
    }
    let mut header = Vec::new();
    file.take(header_bytes).read_to_end(&mut header).map_err(io)?;
    // Parsing checks the tensors' ranges against each other and against their shapes.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
    let expected = 8 + header_bytes + metadata.data_len() as u64;
    if expected == file_bytes {
        return Ok(());
    }
    Err(bad(format!("{file_bytes} bytes long, but its header describes {expected}"))
        .with_hint("the download was cut short or the file was changed: fetch it again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_checkpoint(directory: &Path) -> PathBuf {
        let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &data);
        let file = directory.join(SINGLE_FILE);
        safetensors::serialize_to_file([("x", view.unwrap())], None, &file).unwrap();
        file
    }

    #[test]
    fn every_truncation_of_a_shard_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = write_checkpoint(directory.path());
        let whole = std::fs::read(&file).unwrap();
        assert!(Weights::load(directory.path()).is_ok());
        for length in 0..whole.len() {
            std::fs::write(&file, &whole[..length]).unwrap();
            let error = Weights::load(directory.path()).unwrap_err();
            assert_eq!(error.code(), Code::BadModel, "{length}: {error}");
            assert!(error.message().contains(SINGLE_FILE), "{length}: {error}");
        }
    }

    #[test]
    fn shards_load_as_one_checkpoint_by_their_index() {
        let directory = tempfile::tempdir().unwrap();
        let single = write_checkpoint(directory.path());
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let second = std::fs::read(&single).unwrap();
        let renamed = String::from_utf8_lossy(&second[8..]).find("\"x\"").unwrap() + 9;
        let mut first = second.clone();
        first[renamed] = b'y';
        std::fs::remove_file(single).unwrap();
        std::fs::write(directory.path().join(shards[0]), first).unwrap();
        std::fs::write(directory.path().join(shards[1]), second).unwrap();
        let index = serde_json::json!({"weight_map": {"y": shards[0], "x": shards[1]}});
        std::fs::write(directory.path().join(INDEX_FILE), index.to_string()).unwrap();
        let mut weights = Weights::load(directory.path()).unwrap();
        assert_eq!(weights.bytes(), 16);
        for name in ["x", "y"] {
            let values = super::super::ops::read_f32(&weights.take(name).unwrap()).unwrap();
            assert_eq!(values, [1.0, 2.0]);
        }
        assert!(weights.take("x").unwrap_err().message().contains("`x`"));
    }

    #[test]
    fn tensors_are_renamed_and_dropped_and_never_merged() {
        let directory = tempfile::tempdir().unwrap();
        write_checkpoint(directory.path());
        let mut weights = Weights::load(directory.path()).unwrap();
        weights.arrays.insert("tower.x".to_owned(), Array::from_f32(1.0));
        weights
            .rename(|name| (!name.starts_with("tower")).then(|| format!("inner.{name}")))
            .unwrap();
        assert!(weights.contains("inner.x"));
        assert_eq!(weights.arrays().count(), 1);
        weights.arrays.insert("y".to_owned(), Array::from_f32(1.0));
        let error = weights.rename(|_| Some("z".to_owned())).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.message().contains("`z`"), "{error}");
    }

    #[test]
    fn an_index_that_names_a_missing_or_outside_shard_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["model-00001-of-00002.safetensors", "../outside.safetensors"] {
            let index = format!(r#"{{"weight_map": {{"x": "{name}"}}}}"#);
            std::fs::write(directory.path().join(INDEX_FILE), index).unwrap();
            let error = Weights::load(directory.path()).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(name), "{error}");
        }
    }
}
