//! Safetensors files without their data: which ones a checkpoint has, and what their headers say. No arrays.
//!
//! A header is checked against its file's size, its tensors' ranges against each other and against their shapes.
//! Nothing but the header is read, and no more of that than the file has.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Code, Error, Result};

/// Names the shards of a checkpoint that has several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The weights of a checkpoint that has one file.
pub const SINGLE_FILE: &str = "model.safetensors";

/// What the format allows (safetensors 0.8.0).
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Bytes of tensors that are read at once, or one tensor: what a cast keeps of its source beside its result.
pub const READ_BYTES: u64 = 32 << 20;

/// What the names of tensors end in that old checkpoints hold and every model computes itself.
pub const COMPUTED: &str = "rotary_emb.inv_freq";

/// Ends of the names of tensors that stay in the type in which they are stored, because mlx-lm 0.32.2's
/// `cast_predicate`s keep them: the models use them in f32.
pub const KEPT_TYPES: [&str; 2] = ["A_log", "e_score_correction_bias"];

/// Where writers keep notes among the tensors.
const NOTES: &str = "__metadata__";

/// A tensor as its file's header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorHeader {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its shape, each side below 2^31.
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub range: Range<u64>,
}

impl TensorHeader {
    /// How many numbers it has.
    pub fn values(&self) -> u64 {
        self.shape.iter().fold(1, |values, side| values.saturating_mul(*side as u64))
    }

    /// Its bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Why a file is no whole safetensors file.
#[derive(Debug)]
pub enum ShardFault {
    /// It cannot be read.
    Unreadable(std::io::Error),
    /// It is shorter than its beginning says.
    Short {
        /// Bytes that it has.
        file_bytes: u64,
        /// Bytes that it says it has, as far as is known.
        expected_bytes: u64,
    },
    /// Its beginning is none of a safetensors file, or describes less than there is.
    Damaged(String),
}

impl ShardFault {
    /// The error of loading `path`.
    pub fn of(self, path: &Path) -> Error {
        let bad = |what: &str| {
            Error::new(Code::BadModel, format!("failed to load `{}`: {what}", path.display()))
        };
        const CUT: &str = "the download was cut short or the file was changed: fetch it again";
        match self {
            Self::Unreadable(error) => bad(&error.to_string()),
            Self::Damaged(what) => bad(&what).with_hint(CUT),
            Self::Short { file_bytes, expected_bytes } => {
                bad(&format!("{file_bytes} bytes long, but its header describes {expected_bytes}"))
                    .with_hint(CUT)
            }
        }
    }
}

/// Reads the header of the safetensors file at `path`: its first 8 bytes and as many as those say. The
/// tensors come in the order of their bytes.
///
/// # Errors
/// What is wrong with the file.
pub fn read_header(path: &Path) -> std::result::Result<Vec<TensorHeader>, ShardFault> {
    let mut file = File::open(path).map_err(ShardFault::Unreadable)?;
    let file_bytes = file.metadata().map_err(ShardFault::Unreadable)?.len();
    let short = |expected_bytes| ShardFault::Short { file_bytes, expected_bytes };
    let mut prefix = [0u8; 8];
    file.read_exact(&mut prefix).map_err(|_| short(8))?;
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES_MAX {
        let what = format!("header of {header_bytes} bytes in a file of {file_bytes}");
        return Err(ShardFault::Damaged(what));
    }
    if header_bytes + 8 > file_bytes {
        return Err(short(header_bytes + 8));
    }
    let mut header = Vec::with_capacity(header_bytes as usize);
    file.take(header_bytes).read_to_end(&mut header).map_err(ShardFault::Unreadable)?;
    let data_start = 8 + header_bytes;
    let (tensors, data_bytes) = parse_header(&header, data_start).map_err(ShardFault::Damaged)?;
    let expected_bytes = data_start.saturating_add(data_bytes);
    match expected_bytes.cmp(&file_bytes) {
        std::cmp::Ordering::Equal => Ok(tensors),
        std::cmp::Ordering::Greater => Err(short(expected_bytes)),
        std::cmp::Ordering::Less => Err(ShardFault::Damaged(format!(
            "{file_bytes} bytes long, but its header describes {expected_bytes}"
        ))),
    }
}

/// The tensors of the file at `path`, in the order of their bytes.
///
/// # Errors
/// `BadModel` naming the file when it is no safetensors file, or of another size than its header describes.
pub fn stored_tensors(path: &Path) -> Result<Vec<TensorHeader>> {
    read_header(path).map_err(|fault| fault.of(path))
}

/// The tensors of a header whose data begin at byte `data_start`, and the bytes of all.
fn parse_header(
    header: &[u8],
    data_start: u64,
) -> std::result::Result<(Vec<TensorHeader>, u64), String> {
    let Entries(mut entries) = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    entries.sort_by_key(|(_, info)| info.data_offsets);
    let names: HashSet<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    if names.len() < entries.len() {
        return Err("a tensor is there twice".to_owned());
    }
    let mut data_bytes = 0;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, info) in entries {
        let stop = info.data_offsets.1 as u64;
        tensors.push(checked(name, info, data_bytes, data_start)?);
        data_bytes = stop;
    }
    Ok((tensors, data_bytes))
}

/// The tensor, if its bytes begin where those before it end, at byte `end` of the data, and are as many as its numbers
/// take. That is what the `safetensors` crate checks, too.
fn checked(
    name: String,
    info: TensorInfo,
    end: u64,
    data_start: u64,
) -> std::result::Result<TensorHeader, String> {
    let TensorInfo { dtype, shape, data_offsets: (start, stop) } = info;
    // MLX counts sides in 32 bits and drops the others.
    if let Some(side) = shape.iter().find(|side| i32::try_from(**side).is_err()) {
        return Err(format!("tensor `{name}` has a side of {side}"));
    }
    let (start, stop) = (start as u64, stop as u64);
    let bits =
        shape.iter().try_fold(dtype.bitsize() as u64, |bits, side| bits.checked_mul(*side as u64));
    let held_bits = stop.checked_sub(start).and_then(|bytes| bytes.checked_mul(8));
    if start != end || bits.is_none() || bits != held_bits {
        return Err(format!(
            "tensor `{name}` has the bytes from {start} to {stop}, which do not fit its shape or what lies before it"
        ));
    }
    let range = data_start.saturating_add(start)..data_start.saturating_add(stop);
    Ok(TensorHeader { name, dtype, shape, range })
}

/// The tensors of a header in its order, without its notes.
struct Entries(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// Reads entry by entry: the reader of the `safetensors` crate keeps all of them as JSON first and then under their
/// names twice, which takes several times as long, and a library of hundreds of models has many.
struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            match name == NOTES {
                true => drop(map.next_value::<IgnoredAny>()?),
                false => entries.push((name, map.next_value()?)),
            }
        }
        Ok(Entries(entries))
    }
}

/// The files of weights of the checkpoint in `directory`, in the order of their names.
///
/// # Errors
/// `BadModel` when there are none, or one that the index names is missing.
pub fn shard_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let path = |name: String| {
        let path = directory.join(&name);
        match path.is_file() {
            true => Ok(path),
            false => {
                let index = directory.join(INDEX_FILE);
                let message = format!("`{}`: shard `{name}` is missing", index.display());
                Err(Error::new(Code::BadModel, message))
            }
        }
    };
    shard_names(directory)?.into_iter().map(path).collect()
}

/// The names of these files, whether they are there or not.
///
/// # Errors
/// `BadModel` when there is neither an index nor a single file, or when the index names something else than a
/// file beside it.
pub fn shard_names(directory: &Path) -> Result<Vec<String>> {
    let index = directory.join(INDEX_FILE);
    if index.is_file() {
        let bad = |what| Error::new(Code::BadModel, format!("`{}`: {what}", index.display()));
        return indexed_names(&index).map_err(bad);
    }
    if directory.join(SINGLE_FILE).is_file() {
        return Ok(vec![SINGLE_FILE.to_owned()]);
    }
    Err(Error::new(Code::BadModel, format!("no weights in `{}`", directory.display()))
        .with_hint(format!("expected `{SINGLE_FILE}` or `{INDEX_FILE}` with its shards")))
}

fn indexed_names(index: &Path) -> std::result::Result<Vec<String>, String> {
    let text = std::fs::read_to_string(index).map_err(|error| error.to_string())?;
    let Index { weight_map } = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let ShardNames(names) = weight_map.ok_or("has no `weight_map` object")?;
    match names.iter().find(|name| name.contains(['/', '\\']) || *name == "..") {
        Some(name) => Err(format!("shard name `{name}` leaves the directory")),
        None => Ok(names.into_iter().collect()),
    }
}

/// An index of shards, as far as it is read.
#[derive(Deserialize)]
struct Index {
    weight_map: Option<ShardNames>,
}

/// The shards that tensors are in, each once.
struct ShardNames(BTreeSet<String>);

impl<'de> Deserialize<'de> for ShardNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(ShardNamesVisitor)
    }
}

struct ShardNamesVisitor;

impl<'de> Visitor<'de> for ShardNamesVisitor {
    type Value = ShardNames;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<ShardNames, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((IgnoredAny, name)) = map.next_entry::<IgnoredAny, Cow<'de, str>>()? {
            if !names.contains(name.as_ref()) {
                names.insert(name.into_owned());
            }
        }
        Ok(ShardNames(names))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn parse(header: &Value) -> std::result::Result<(Vec<TensorHeader>, u64), String> {
        parse_header(header.to_string().as_bytes(), 100)
    }

    fn tensor(dtype: &str, shape: &[u64], range: [u64; 2]) -> Value {
        json!({ "dtype": dtype, "shape": shape, "data_offsets": range })
    }

    #[test]
    fn tensors_come_in_the_order_of_their_bytes_and_notes_are_left_out() {
        let header = json!({
            "__metadata__": { "format": "mlx" },
            "b": tensor("BF16", &[2, 3], [4, 16]),
            "a": tensor("U32", &[1], [0, 4]),
        });
        let (tensors, bytes) = parse(&header).unwrap();
        let seen: Vec<_> =
            tensors.iter().map(|it| (it.name.as_str(), it.values(), it.range.clone())).collect();
        assert_eq!((seen, bytes), (vec![("a", 1, 100..104), ("b", 6, 104..116)], 16));
    }

    #[test]
    fn headers_that_cannot_be_are_damage() {
        let huge = u64::MAX / 2;
        for header in [
            json!([]),
            json!({ "a": tensor("F32", &[2], [0, 4]) }),
            json!({ "a": tensor("F32", &[huge, huge], [0, 4]) }),
            json!({ "a": tensor("F32", &[1], [4, 8]) }),
            json!({ "a": tensor("F32", &[1], [4, 0]) }),
            json!({ "a": tensor("F32", &[1], [0, 4]), "b": tensor("F32", &[2], [0, 8]) }),
            json!({ "a": tensor("F31", &[1], [0, 4]) }),
            json!({ "a": { "dtype": "F32", "shape": [-1], "data_offsets": [0, 4] } }),
            json!({ "a": 3 }),
        ] {
            assert!(parse(&header).is_err(), "{header}");
        }
        let entry = tensor("F32", &[0], [0, 0]);
        let twice = format!("{{\"a\":{entry},\"a\":{entry}}}");
        assert!(parse_header(twice.as_bytes(), 0).is_err());
        assert!(parse_header(b"{\"\xff\":{}}", 0).is_err());
    }

    /// A whole file with one tensor.
    fn file() -> Vec<u8> {
        let header = json!({ "weight": tensor("F32", &[2], [0, 8]) }).to_string();
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], header.as_bytes(), &[0; 8]].concat()
    }

    fn read(bytes: &[u8]) -> std::result::Result<Vec<TensorHeader>, ShardFault> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        read_header(file.path())
    }

    #[test]
    fn what_is_cut_short_is_told_from_what_is_damaged() {
        let whole = file();
        assert_eq!(read(&whole).unwrap().len(), 1);
        for length in 0..whole.len() {
            let fault = read(&whole[..length]).unwrap_err();
            assert!(matches!(fault, ShardFault::Short { .. }), "{length}: {fault:?}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(matches!(read(&longer).unwrap_err(), ShardFault::Damaged(_)));
        let huge = [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat();
        assert!(matches!(read(&huge).unwrap_err(), ShardFault::Damaged(_)));
        let missing = read_header(Path::new("/no such file")).unwrap_err();
        assert!(matches!(missing, ShardFault::Unreadable(_)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Any bytes, and whole files with some bytes changed, are tensors within the file or a fault.
        #[test]
        fn any_bytes_are_tensors_of_the_file_or_a_fault(
            changes in prop::collection::vec((0usize..96, any::<u8>()), 0..6),
            cut in 0usize..100,
        ) {
            let mut bytes = file();
            for (place, value) in changes {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
            }
            bytes.truncate(cut.max(1));
            if let Ok(tensors) = read(&bytes) {
                let held: u64 = tensors.iter().map(TensorHeader::bytes).sum();
                prop_assert!(held <= bytes.len() as u64);
            }
        }
    }
}
