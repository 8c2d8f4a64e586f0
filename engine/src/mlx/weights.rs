//! Reading the weights of a checkpoint: one file or shards with an index, whose headers are checked before
//! MLX sees them.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};

use super::ops;
use super::shards::{COMPUTED, KEPT_TYPES, READ_BYTES, TensorHeader, shard_files, stored_tensors};
use crate::error::{Code, Error, Result};

/// Tensors that an error names before it counts the rest.
const NAMED_TENSORS: usize = 3;

/// Named arrays of a checkpoint. Layers take what is theirs; nothing is copied, and nothing is read
/// before [`Weights::read`].
#[derive(Debug)]
pub struct Weights {
    arrays: HashMap<String, Array>,
    /// What layers took, in that order.
    taken: Vec<(String, Array)>,
    directory: PathBuf,
    /// What they were cast to.
    cast: Option<Dtype>,
}

/// How far a checkpoint is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadProgress {
    /// Bytes in memory.
    pub done_bytes: u64,
    /// Bytes of all tensors that the model takes.
    pub total_bytes: u64,
}

impl Weights {
    /// Reads every tensor of the checkpoint in `directory` (lazily: MLX reads data at evaluation).
    ///
    /// # Errors
    /// `BadModel` naming the file that is missing, truncated or not safetensors.
    pub fn load(directory: &Path) -> Result<Self> {
        let mut arrays = HashMap::new();
        for file in shard_files(directory)? {
            stored_tensors(&file)?;
            arrays.extend(Array::load_safetensors(&file).map_err(|error| {
                Error::from(error).while_doing(format_args!("failed to load `{}`", file.display()))
            })?);
        }
        arrays.retain(|name: &String, _| !name.ends_with(COMPUTED));
        Ok(Self { arrays, taken: Vec::new(), cast: None, directory: directory.to_owned() })
    }

    /// A checkpoint of arrays that are at hand, for tests.
    pub fn of(arrays: impl IntoIterator<Item = (String, Array)>) -> Self {
        let directory = PathBuf::from("memory");
        Self { arrays: arrays.into_iter().collect(), taken: Vec::new(), cast: None, directory }
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
        let array = self.arrays.remove(name)?;
        self.taken.push((name.to_owned(), ops::share(&array)));
        Some(array)
    }

    /// Takes the tensor `name` out to make others of it, which are [`put`](Self::put) in for it.
    ///
    /// # Errors
    /// `BadModel` when it is missing.
    pub fn detach(&mut self, name: &str) -> Result<Array> {
        self.arrays.remove(name).ok_or_else(|| self.missing(name))
    }

    /// Leaves out every tensor that `unwanted` says the family has no use for.
    pub fn discard(&mut self, unwanted: impl Fn(&str) -> bool) {
        self.arrays.retain(|name, _| !unwanted(name));
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

    /// Puts `array` in under `name`.
    pub fn put(&mut self, name: String, array: Array) {
        self.arrays.insert(name, array);
    }

    /// Every tensor with its name, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array))
    }

    /// Puts in each tensor's place what `change` makes of it.
    ///
    /// # Errors
    /// What `change` says.
    pub fn map(&mut self, change: impl Fn(&str, &Array) -> Result<Array>) -> Result<()> {
        for (name, array) in &mut self.arrays {
            *array = change(name, array)?;
        }
        Ok(())
    }

    /// Gives every tensor the name that `rule` makes of its own, and drops those for which there is none.
    ///
    /// # Errors
    /// `BadModel` when two tensors come to have one name.
    pub fn rename(&mut self, rule: impl Fn(&str) -> Option<String>) -> Result<()> {
        let arrays = std::mem::take(&mut self.arrays);
        for (name, array) in arrays {
            let Some(renamed) = rule(&name) else { continue };
            if self.arrays.insert(renamed.clone(), array).is_some() {
                let message = format!("two tensors are `{renamed}`, one of them as `{name}`");
                return Err(Error::new(Code::BadModel, message));
            }
        }
        Ok(())
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

    /// Reads what layers took, a part at a time, so that a cast never keeps two copies of everything;
    /// returns its bytes.
    ///
    /// # Errors
    /// `BadModel` naming tensors that no layer took, or one that holds NaN.
    pub fn read(self, on_progress: &mut dyn FnMut(ReadProgress)) -> Result<u64> {
        let mut reading = self.begin_reading()?;
        while let Some(progress) = reading.read_part()? {
            on_progress(progress);
        }
        Ok(reading.total_bytes())
    }

    /// What layers took, to be read part by part; nothing is read yet.
    ///
    /// # Errors
    /// `BadModel` naming tensors that no layer took.
    pub fn begin_reading(self) -> Result<WeightsReading> {
        self.check_nothing_is_left()?;
        let total_bytes = self.taken.iter().map(|(_, array)| array.nbytes() as u64).sum();
        let progress = ReadProgress { done_bytes: 0, total_bytes };
        Ok(WeightsReading { unread: self.taken.into_iter(), progress })
    }

    /// Holds that layers took every tensor.
    ///
    /// # Errors
    /// `BadModel` naming the first that none took.
    pub fn check_nothing_is_left(&self) -> Result<()> {
        if self.arrays.is_empty() {
            return Ok(());
        }
        let names: BTreeSet<&str> = self.arrays.keys().map(String::as_str).collect();
        let named: Vec<_> =
            names.iter().take(NAMED_TENSORS).map(|name| format!("`{name}`")).collect();
        let more = match names.len() - named.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let directory = self.directory.display();
        let message = format!(
            "`{directory}` has tensors that its config does not explain: {}{more}",
            named.join(", ")
        );
        Err(Error::new(Code::BadModel, message))
    }
}

/// Weights on their way into memory.
#[derive(Debug)]
pub struct WeightsReading {
    unread: std::vec::IntoIter<(String, Array)>,
    progress: ReadProgress,
}

impl WeightsReading {
    /// Reads the next tensors, 32 MB or one, and says how far it is then; `None` when all are read.
    ///
    /// # Errors
    /// `BadModel` naming a tensor that holds NaN.
    pub fn read_part(&mut self) -> Result<Option<ReadProgress>> {
        let (mut part, mut part_bytes) = (Vec::new(), 0);
        while part_bytes < READ_BYTES
            && let Some((name, array)) = self.unread.next()
        {
            part_bytes += array.nbytes() as u64;
            part.push((name, array));
        }
        if part.is_empty() {
            return Ok(None);
        }
        read_part(&part)?;
        self.progress.done_bytes += part_bytes;
        Ok(Some(self.progress))
    }

    /// Bytes of all tensors, read or not.
    pub fn total_bytes(&self) -> u64 {
        self.progress.total_bytes
    }
}

fn read_part(part: &[(String, Array)]) -> Result<()> {
    ops::evaluate(part.iter().map(|(_, array)| array))?;
    for (name, array) in part.iter().filter(|(_, array)| array.dtype().is_float()) {
        if ops::has_nan(array)? {
            let message = format!("tensor `{name}` holds values that are no numbers (NaN)");
            return Err(Error::new(Code::BadModel, message)
                .with_hint("the file was damaged or its conversion failed: fetch it again"));
        }
    }
    Ok(())
}

/// Bytes that the tensors of the checkpoint in `directory` take once floating-point ones are cast to `dtype`; `None`
/// leaves them as they are. Only the headers of its files are read.
///
/// # Errors
/// `BadModel` naming the file that is missing, truncated or not safetensors.
pub fn estimate_bytes(directory: &Path, dtype: Option<Dtype>) -> Result<u64> {
    let mut bytes = 0;
    for file in shard_files(directory)? {
        let tensors = stored_tensors(&file)?;
        bytes += tensors.iter().map(|tensor| cast_bytes(tensor, dtype)).sum::<u64>();
    }
    Ok(bytes)
}

fn cast_bytes(tensor: &TensorHeader, dtype: Option<Dtype>) -> u64 {
    use safetensors::Dtype::{BF16, F16, F32};
    match dtype.filter(|_| matches!(tensor.dtype, F32 | F16 | BF16)) {
        Some(Dtype::Float32) => tensor.values().saturating_mul(4),
        Some(_) => tensor.values().saturating_mul(2),
        None => tensor.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shards::{INDEX_FILE, SINGLE_FILE};
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

    /// A checkpoint of f32 tensors by name.
    fn checkpoint(tensors: &[(&str, &[f32])]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let data: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(_, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let views = tensors.iter().zip(&data).map(|((name, values), data)| {
            let shape = vec![values.len()];
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, data);
            (*name, view.unwrap())
        });
        safetensors::serialize_to_file(views, None, &directory.path().join(SINGLE_FILE)).unwrap();
        directory
    }

    #[test]
    fn tensors_that_nothing_takes_are_refused_by_name() {
        let tensors = ["a", "b", "c", "d", "e"].map(|name| (name, &[1.0f32][..]));
        let directory = checkpoint(&tensors);
        let mut weights = Weights::load(directory.path()).unwrap();
        weights.take("a").unwrap();
        let message = weights.read(&mut |_| ()).unwrap_err().to_string();
        assert!(message.contains("`b`, `c`, `d` and 1 more"), "{message}");
        let mut weights = Weights::load(directory.path()).unwrap();
        weights.take("a").unwrap();
        weights.discard(|name| name != "e");
        assert!(weights.read(&mut |_| ()).unwrap_err().message().contains("`e`"));
    }

    #[test]
    fn frequencies_that_old_checkpoints_store_are_left_out() {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
        let directory = checkpoint(&[("a", &[1.0]), (name, &[1.0])]);
        let mut weights = Weights::load(directory.path()).unwrap();
        weights.take("a").unwrap();
        assert_eq!(weights.read(&mut |_| ()).unwrap(), 4);
    }

    #[test]
    fn a_tensor_with_nan_anywhere_is_refused_by_name() {
        for index in 0..3 {
            let mut values = [1.0, f32::INFINITY, -1.0];
            values[index] = f32::NAN;
            let directory = checkpoint(&[("good", &[1.0]), ("bad", &values)]);
            for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
                let mut weights = Weights::load(directory.path()).unwrap();
                weights.cast(dtype).unwrap();
                weights.take("good").unwrap();
                weights.take("bad").unwrap();
                let message = weights.read(&mut |_| ()).unwrap_err().to_string();
                assert!(message.contains("`bad`") && message.contains("NaN"), "{message}");
            }
        }
    }

    #[test]
    fn progress_ends_at_all_bytes_that_were_taken() {
        let directory = checkpoint(&[("a", &[1.0; 5]), ("b", &[2.0; 7])]);
        let mut weights = Weights::load(directory.path()).unwrap();
        weights.take("b").unwrap();
        weights.take("a").unwrap();
        let mut seen = Vec::new();
        assert_eq!(weights.read(&mut |progress| seen.push(progress)).unwrap(), 48);
        assert_eq!(seen.last(), Some(&ReadProgress { done_bytes: 48, total_bytes: 48 }));
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
        for name in ["x", "y"] {
            let values = ops::read_f32(&weights.take(name).unwrap()).unwrap();
            assert_eq!(values, [1.0, 2.0]);
        }
        assert!(weights.take("x").unwrap_err().message().contains("`x`"));
        assert_eq!(weights.read(&mut |_| ()).unwrap(), 16);
    }

    #[test]
    fn renamed_tensors_keep_their_numbers_and_two_never_become_one() {
        let directory = tempfile::tempdir().unwrap();
        write_checkpoint(directory.path());
        let load = || {
            let mut weights = Weights::load(directory.path()).unwrap();
            weights.put("y".to_owned(), Array::from_slice(&[3.0_f32], &[1]));
            weights
        };
        let mut weights = load();
        weights.rename(|name| (name != "y").then(|| format!("model.{name}"))).unwrap();
        assert_eq!(weights.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["model.x"]);
        let values = super::super::ops::read_f32(&weights.take("model.x").unwrap()).unwrap();
        assert_eq!(values, [1.0, 2.0]);
        let error = load().rename(|_| Some("z".to_owned())).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.message().contains("`z`"), "{error}");
    }

    #[test]
    fn numbers_that_need_their_own_type_keep_it() {
        let directory = tempfile::tempdir().unwrap();
        write_checkpoint(directory.path());
        let mut weights = Weights::load(directory.path()).unwrap();
        weights.put("layers.0.A_log".to_owned(), Array::from_slice(&[3.0_f32], &[1]));
        weights.cast(Dtype::Bfloat16).unwrap();
        let dtype = |weights: &mut Weights, name| weights.take(name).unwrap().dtype();
        assert_eq!(dtype(&mut weights, "x"), Dtype::Bfloat16);
        assert_eq!(dtype(&mut weights, "layers.0.A_log"), Dtype::Float32);
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
