//! The new files of weights: which tensors are in which, and where in it each lies. All sizes are known before
//! a number is, so headers are written first and every number goes to its place.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Value, json};

use super::plan::{Output, Plan, TensorPlan};
use super::source::value_bytes;
use crate::error::{Code, Error, Result};
use crate::mlx::shards::SINGLE_FILE;

/// A file to be.
#[derive(Debug, Clone)]
pub(super) struct Shard {
    /// Its name.
    pub(super) name: String,
    /// Which tensors of the plan are in it.
    pub(super) tensors: Range<usize>,
    /// What it begins with.
    pub(super) header: Vec<u8>,
    /// For each tensor where in the file its outputs begin.
    pub(super) places: Vec<Vec<u64>>,
    /// Bytes of the file.
    pub(super) bytes: u64,
}

/// Lays the tensors of `plan` out in files of at most `shard_bytes_max`, or of one tensor.
///
/// # Errors
/// `BadModel` when a header becomes larger than readers take.
pub(super) fn lay_out(plan: &Plan, shard_bytes_max: u64) -> Result<Vec<Shard>> {
    let outputs: Vec<Vec<Output>> = plan.tensors.iter().map(TensorPlan::outputs).collect();
    let ranges = cut(&outputs, shard_bytes_max);
    let count = ranges.len();
    let shard = |(index, tensors): (usize, Range<usize>)| {
        let name = match count {
            1 => SINGLE_FILE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        Shard::of(name, tensors.clone(), &outputs[tensors])
    };
    ranges.into_iter().enumerate().map(shard).collect()
}

/// Which tensors go together: as many as fit, each with all its outputs.
fn cut(outputs: &[Vec<Output>], shard_bytes_max: u64) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, outputs) in outputs.iter().enumerate() {
        let more: u64 = outputs.iter().map(Output::bytes).sum();
        if index > start && bytes + more > shard_bytes_max {
            ranges.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes += more;
    }
    ranges.push(start..outputs.len());
    ranges
}

impl Shard {
    fn of(name: String, tensors: Range<usize>, outputs: &[Vec<Output>]) -> Result<Self> {
        let mut parts: Vec<(usize, usize, &Output)> = Vec::new();
        for (tensor, outputs) in outputs.iter().enumerate() {
            parts.extend(outputs.iter().enumerate().map(|(part, output)| (tensor, part, output)));
        }
        // The widest numbers first, so that all are aligned.
        parts.sort_by(|(_, _, left), (_, _, right)| {
            let wider = value_bytes(right.dtype).cmp(&value_bytes(left.dtype));
            wider.then_with(|| left.name.cmp(&right.name))
        });
        let mut places: Vec<Vec<u64>> = outputs.iter().map(|all| vec![0; all.len()]).collect();
        let (mut infos, mut offset) = (Vec::new(), 0u64);
        for (tensor, part, output) in parts {
            places[tensor][part] = offset;
            let end = offset + output.bytes();
            infos.push((output.name.clone(), info(output, offset..end)));
            offset = end;
        }
        let header = header(infos).map_err(|what| {
            Error::new(Code::BadModel, format!("failed to describe `{name}`: {what}"))
        })?;
        let header_bytes = header.len() as u64;
        places.iter_mut().flatten().for_each(|place| *place += header_bytes);
        Ok(Self { name, tensors, header, places, bytes: header_bytes + offset })
    }
}

fn info(output: &Output, bytes: Range<u64>) -> TensorInfo {
    // What does not fit fails in `Metadata::new`.
    let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let data_offsets = (place(bytes.start), place(bytes.end));
    TensorInfo { dtype: output.dtype, shape: output.shape.clone(), data_offsets }
}

/// The length of the description, the description, and spaces up to a multiple of 8 bytes.
fn header(infos: Vec<(String, TensorInfo)>) -> std::result::Result<Vec<u8>, String> {
    const ALIGNMENT: usize = 8;
    let format = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    Ok([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat())
}

/// The index: which tensor is in which file.
pub(super) fn index(plan: &Plan, shards: &[Shard]) -> Value {
    let mut map = BTreeMap::new();
    let mut total_bytes = 0;
    for shard in shards {
        for output in plan.tensors[shard.tensors.clone()].iter().flat_map(TensorPlan::outputs) {
            total_bytes += output.bytes();
            map.insert(output.name, shard.name.clone());
        }
    }
    json!({ "metadata": { "total_size": total_bytes }, "weight_map": map })
}
