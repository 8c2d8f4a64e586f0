//! Drafts: what becomes of the tensors of a checkpoint before any of them is packed, as plain data.
//!
//! Every draft is made of **pieces**: rows of stored tensors, in their order. So experts become a stack,
//! and a joined matrix becomes two, without a number being read; whoever writes the draft reads its rows
//! some at a time.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::source::{SourceTensor, value_bytes};
use crate::error::{Code, Error, Result};

/// Some rows of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which tensor of the source.
    pub(super) source: usize,
    /// Numbers of a row: the stored tensor is seen as so wide.
    pub(super) columns: usize,
    /// The first row.
    pub(super) first: usize,
    /// From one row to the next.
    pub(super) step: usize,
    /// How many rows.
    pub(super) rows: usize,
    /// Whether their columns become the rows.
    pub(super) transposed: bool,
}

/// A tensor to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Draft {
    /// The type of its numbers, as they are stored.
    pub(super) dtype: Dtype,
    /// Its shape.
    pub(super) shape: Vec<usize>,
    /// What it is made of, one after the other.
    pub(super) pieces: Vec<Piece>,
    /// What is added to every number.
    pub(super) term: f32,
}

impl Draft {
    /// A stored tensor as it is.
    fn of(source: usize, tensor: &SourceTensor) -> Self {
        let (shape, dtype) = (tensor.stored.shape.clone(), tensor.stored.dtype);
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).product();
        let piece = Piece { source, columns, first: 0, step: 1, rows, transposed: false };
        Self { dtype, shape, pieces: vec![piece], term: 0.0 }
    }

    /// Its last side; 1 for a single number.
    pub(super) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Where it comes from: the tensor that its first number is of.
    pub(super) fn source(&self) -> usize {
        self.pieces[0].source
    }

    /// A draft of `shape` made of rows of this one, which is a stored tensor as it is.
    pub(super) fn of_rows(&self, shape: Vec<usize>, rows: impl IntoIterator<Item = Rows>) -> Self {
        let source = self.source();
        let piece = |rows: Rows| {
            let Rows { columns, first, step, count, transposed } = rows;
            Piece { source, columns, first, step, rows: count, transposed }
        };
        Self { shape, pieces: rows.into_iter().map(piece).collect(), ..self.clone() }
    }
}

/// Which rows of a stored tensor: see [`Piece`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) columns: usize,
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    pub(super) transposed: bool,
}

/// Every draft by its name.
#[derive(Debug, Clone)]
pub(super) struct Drafts(BTreeMap<String, Draft>);

impl Drafts {
    /// The stored tensors as they are.
    pub(super) fn of(tensors: &[SourceTensor]) -> Self {
        let draft = |(index, tensor): (usize, &SourceTensor)| {
            (tensor.stored.name.clone(), Draft::of(index, tensor))
        };
        Self(tensors.iter().enumerate().map(draft).collect())
    }

    /// Whether there is one of that name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Every draft with its name, in the order of the names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Draft)> {
        self.0.iter().map(|(name, draft)| (name.as_str(), draft))
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Draft)> {
        self.0.iter_mut().map(|(name, draft)| (name.as_str(), draft))
    }

    /// The names that end in `end`, without it.
    pub(super) fn stems(&self, end: &str) -> Vec<String> {
        self.0.keys().filter_map(|name| name.strip_suffix(end).map(str::to_owned)).collect()
    }

    /// The draft `name`.
    pub(super) fn get(&self, name: &str) -> Result<&Draft> {
        self.0.get(name).ok_or_else(|| missing(name))
    }

    /// Takes the draft `name` out.
    pub(super) fn take(&mut self, name: &str) -> Result<Draft> {
        self.0.remove(name).ok_or_else(|| missing(name))
    }

    /// Puts `draft` in under `name`.
    pub(super) fn put(&mut self, name: String, draft: Draft) {
        self.0.insert(name, draft);
    }

    /// Leaves out what `unwanted` names.
    pub(super) fn discard(&mut self, unwanted: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| !unwanted(name));
    }

    /// Gives every draft the name that `rule` makes of its own, and drops those for which there is none.
    pub(super) fn rename(&mut self, rule: impl Fn(&str) -> Option<String>) -> Result<()> {
        for (name, draft) in std::mem::take(&mut self.0) {
            let Some(renamed) = rule(&name) else { continue };
            if self.0.insert(renamed.clone(), draft).is_some() {
                let message = format!("two tensors are `{renamed}`, one of them as `{name}`");
                return Err(Error::new(Code::BadModel, message));
            }
        }
        Ok(())
    }

    /// Puts a stack under `target` in the place of the drafts `names`, which are alike.
    pub(super) fn stack(&mut self, names: &[String], target: String) -> Result<()> {
        let parts = names.iter().map(|name| self.take(name)).collect::<Result<Vec<_>>>()?;
        let Some(first) = parts.first() else { return Ok(()) };
        for (name, part) in names.iter().zip(&parts) {
            if (&part.shape, part.dtype) != (&first.shape, first.dtype) {
                let (shape, other) = (&part.shape, &first.shape);
                let message =
                    format!("tensor `{name}` is {shape:?}, unlike `{}`, {other:?}", names[0]);
                return Err(Error::new(Code::BadModel, message));
            }
        }
        let shape = [&[parts.len()], first.shape.as_slice()].concat();
        let (dtype, term) = (first.dtype, first.term);
        let pieces = parts.into_iter().flat_map(|part| part.pieces).collect();
        self.put(target, Draft { dtype, shape, pieces, term });
        Ok(())
    }

    /// Puts the two halves of the rows of each matrix of the stack `joined` under `halves`.
    pub(super) fn halve(&mut self, joined: &str, halves: [String; 2]) -> Result<()> {
        let draft = self.take(joined)?;
        let [stack, rows, columns] = draft.shape[..] else { return Err(odd(joined, &draft)) };
        if rows % 2 != 0 {
            return Err(odd(joined, &draft));
        }
        let half = rows / 2;
        for (name, start) in halves.into_iter().zip([0, half]) {
            let one = |index: usize| Rows {
                columns,
                first: index * rows + start,
                step: 1,
                count: half,
                transposed: false,
            };
            let part = draft.of_rows(vec![stack, half, columns], (0..stack).map(one));
            self.put(name, part);
        }
        Ok(())
    }

    /// Puts every other row of the stack `joined`, `[E, rows, ..]`, under `names`: the even rows and the odd
    /// ones.
    pub(super) fn deal(&mut self, joined: &str, names: [String; 2]) -> Result<()> {
        let draft = self.take(joined)?;
        let [stack, rows, rest @ ..] = &draft.shape[..] else { return Err(odd(joined, &draft)) };
        if rows % 2 != 0 {
            return Err(odd(joined, &draft));
        }
        let shape = [&[*stack, rows / 2], rest].concat();
        for (first, name) in names.into_iter().enumerate() {
            let columns = rest.iter().product();
            let count = stack * rows / 2;
            let dealt = Rows { columns, first, step: 2, count, transposed: false };
            let part = draft.of_rows(shape.clone(), [dealt]);
            self.put(name, part);
        }
        Ok(())
    }
}

impl Piece {
    /// Numbers of each row that it gives.
    pub(super) fn row_values(&self) -> usize {
        if self.transposed { self.rows } else { self.columns }
    }

    /// Bytes of its numbers, where each has the type `dtype`.
    pub(super) fn bytes(&self, dtype: Dtype) -> usize {
        self.rows * self.columns * value_bytes(dtype)
    }
}

fn missing(name: &str) -> Error {
    Error::new(Code::BadModel, format!("tensor `{name}` is missing"))
}

fn odd(name: &str, draft: &Draft) -> Error {
    let message = format!(
        "tensor `{name}` has shape {:?}, but gate and up take an even number of rows of each expert",
        draft.shape
    );
    Error::new(Code::BadModel, message)
}
