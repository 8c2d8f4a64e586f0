//! Caches under a scheme: rows of a batch hold the bytes of their own runs.

use proptest::prelude::*;

use super::super::{KvScheme, Packing};
use super::{CacheSet, Kind, Twin};
use crate::mlx::ops;
use crate::mlx::{Array, Device, Dtype};

/// Full layers and windows, narrow and wide.
const KINDS: [Kind; 4] = [Kind::Full, Kind::Rotating(5), Kind::Full, Kind::Rotating(300)];
const HEADS: usize = 2;
const DIMENSION: usize = 64;

const FOUR_BITS: Packing = Packing { group_size: 32, bits: 4 };
const SIX_BITS: Packing = Packing { group_size: 64, bits: 6 };

/// Tokens from which on [`late`] packs.
const START: usize = 6;

fn early() -> KvScheme {
    KvScheme::Uniform { packing: FOUR_BITS, start_tokens: 0 }
}

fn late() -> KvScheme {
    KvScheme::Uniform { packing: SIX_BITS, start_tokens: START }
}

fn layered() -> KvScheme {
    KvScheme::PerLayer(vec![Some(SIX_BITS), Some(FOUR_BITS), None, Some(FOUR_BITS)])
}

/// Writes one chunk of keys and values, `[rows, HEADS, tokens, DIMENSION]` and its negative, to every
/// layer, and converts as an executor does.
fn feed(set: &mut CacheSet, scheme: &KvScheme, rows: &[Vec<u32>]) {
    let keys = columns_of(rows);
    for layer in 0..KINDS.len() {
        set.layer(layer).update(keys.clone(), keys.negative().unwrap()).unwrap();
    }
    set.advance(rows[0].len());
    set.convert(scheme).unwrap();
}

fn columns_of(rows: &[Vec<u32>]) -> Array {
    let mut data = Vec::new();
    for row in rows {
        for head in 0..HEADS {
            for token in row {
                let value = |d: usize| (*token as f32 * 0.7 + (head * DIMENSION + d) as f32).sin();
                data.extend((0..DIMENSION).map(value));
            }
        }
    }
    let shape = [rows.len(), HEADS, rows[0].len(), DIMENSION].map(ops::axis_index);
    Array::from_slice(&data, &shape)
}

/// A batch, and each of its rows again, alone.
struct Pair {
    scheme: KvScheme,
    batch: CacheSet,
    alone: Vec<CacheSet>,
}

impl Pair {
    /// A row that was fed `tokens` in chunks of `chunk`.
    fn solo(scheme: &KvScheme, tokens: &[u32], chunk: usize) -> Self {
        let mut sets = [Twin::empty(&KINDS).set, Twin::empty(&KINDS).set];
        for set in &mut sets {
            tokens.chunks(chunk).for_each(|chunk| feed(set, scheme, &[chunk.to_vec()]));
        }
        let [batch, alone] = sets;
        Self { scheme: scheme.clone(), batch, alone: vec![alone] }
    }

    fn step(&mut self, tokens: &[u32]) {
        let rows: Vec<_> = tokens.iter().map(|token| vec![*token]).collect();
        feed(&mut self.batch, &self.scheme, &rows);
        for (alone, row) in self.alone.iter_mut().zip(rows) {
            feed(alone, &self.scheme, &[row]);
        }
    }

    fn join(&mut self, other: Self) {
        self.batch.extend(other.batch).unwrap();
        self.alone.extend(other.alone);
    }

    fn keep(&mut self, keep: &[usize]) {
        self.batch.filter(keep).unwrap();
        let mut index = 0;
        self.alone.retain(|_| {
            index += 1;
            keep.contains(&(index - 1))
        });
    }

    /// Takes every row out and builds the batch anew.
    fn rebuild(&mut self) {
        let solos = (0..self.batch.rows()).map(|row| self.batch.extract(row).unwrap());
        self.batch = CacheSet::merge(solos.collect()).unwrap();
    }

    fn check(&self) {
        assert_eq!(self.batch.rows(), self.alone.len());
        for (row, alone) in self.alone.iter().enumerate() {
            let extracted = self.batch.extract(row).unwrap();
            let own = alone.extract(0).unwrap();
            assert_eq!(extracted.geometry(), own.geometry());
            let least = columns_at_least(&self.scheme, own.geometry().width() as usize);
            let (extracted, own) = (held(&extracted), held(&own));
            assert_eq!((extracted.len(), own.len()), (least.len(), least.len()), "row {row}");
            for ((extracted, own), least) in extracted.iter().zip(&own).zip(least) {
                check_newest(extracted, own, least);
            }
        }
    }
}

/// The columns that each array holds at least of a row of `tokens` tokens: a window may hold more than
/// it shows.
fn columns_at_least(scheme: &KvScheme, tokens: usize) -> Vec<usize> {
    let of_layer = |(index, kind): (usize, &Kind)| {
        let arrays = if scheme.packing_at(index, tokens).is_some() { 6 } else { 2 };
        let columns = match kind {
            Kind::Rotating(window) => tokens.min(*window as usize),
            Kind::Full | Kind::Recurrent | Kind::Latent | Kind::Choosing => tokens,
        };
        vec![columns; arrays]
    };
    KINDS.iter().enumerate().flat_map(of_layer).collect()
}

/// The newest columns are the same, `least` of them at least.
fn check_newest(left: &[Vec<u32>], right: &[Vec<u32>], least: usize) {
    let columns = left.len().min(right.len());
    assert!(columns >= least, "{columns} columns of {least}");
    assert_eq!(left[left.len() - columns..], right[right.len() - columns..]);
}

/// For each array of each layer, the bits of its columns.
fn held(set: &CacheSet) -> Vec<Vec<Vec<u32>>> {
    set.arrays().map(columns).collect()
}

fn columns(array: &Array) -> Vec<Vec<u32>> {
    let bits: Vec<u32> = match array.dtype() {
        Dtype::Uint32 => ops::read_u32(array).unwrap(),
        _ => ops::read_f32(array).unwrap().into_iter().map(f32::to_bits).collect(),
    };
    let (count, width) = (array.dim(2) as usize, array.dim(3) as usize);
    let column = |index: usize| {
        let heads = bits.chunks(count * width);
        heads.flat_map(|head| &head[index * width..(index + 1) * width]).copied().collect()
    };
    (0..count).map(column).collect()
}

#[derive(Debug, Clone)]
enum Operation {
    Join(usize, usize),
    Step(usize),
    Leave(u64),
    Rebuild,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (START..320, 1usize..200).prop_map(|(tokens, chunk)| Operation::Join(tokens, chunk)),
        (1usize..9).prop_map(Operation::Step),
        any::<u64>().prop_map(Operation::Leave),
        Just(Operation::Rebuild),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn packed_rows_extract_as_their_own_runs_bytes_after_any_joins_steps_and_leaves(
        scheme in prop_oneof![Just(early()), Just(late()), Just(layered())],
        first in (START..320, 1usize..200),
        operations in prop::collection::vec(operation(), 1..9),
    ) {
        Device::cpu();
        let mut next = 0;
        let mut fresh = |count: usize| -> Vec<u32> {
            next += count as u32;
            (next - count as u32..next).collect()
        };
        let mut pair = Pair::solo(&scheme, &fresh(first.0), first.1);
        for operation in operations {
            match operation {
                Operation::Join(tokens, chunk) => {
                    pair.join(Pair::solo(&scheme, &fresh(tokens), chunk));
                }
                Operation::Step(count) => for _ in 0..count {
                    let tokens = fresh(pair.alone.len());
                    pair.step(&tokens);
                },
                Operation::Rebuild => pair.rebuild(),
                Operation::Leave(choice) => {
                    let rows = 0..pair.alone.len();
                    let keep: Vec<_> = rows.filter(|row| choice >> row & 1 == 1).collect();
                    if !keep.is_empty() {
                        pair.keep(&keep);
                    }
                }
            }
            pair.check();
        }
    }

    #[test]
    fn columns_are_packed_alike_whenever_they_are_packed(
        tokens in 1usize..300, chunk in 1usize..100, start in 0usize..300,
    ) {
        Device::cpu();
        let tokens: Vec<u32> = (0..tokens as u32).collect();
        let at_once = Pair::solo(&KvScheme::Plain, &tokens, tokens.len());
        let mut at_once = at_once.batch;
        at_once.convert(&KvScheme::Uniform { packing: SIX_BITS, start_tokens: 0 }).unwrap();
        let scheme = KvScheme::Uniform { packing: SIX_BITS, start_tokens: start.min(tokens.len()) };
        let in_time = Pair::solo(&scheme, &tokens, chunk);
        let (at_once, in_time) = (at_once.extract(0).unwrap(), in_time.batch.extract(0).unwrap());
        let least = columns_at_least(&scheme, tokens.len());
        prop_assert_eq!((held(&at_once).len(), held(&in_time).len()), (least.len(), least.len()));
        for ((at_once, in_time), least) in held(&at_once).iter().zip(&held(&in_time)).zip(least) {
            check_newest(at_once, in_time, least);
        }
    }
}

#[test]
fn a_scheme_converts_its_layers_once_their_tokens_are_there_and_no_others() {
    Device::cpu();
    let arrays = |set: &CacheSet| set.arrays().count();
    let mut set = Twin::empty(&KINDS).set;
    set.convert(&early()).unwrap();
    assert_eq!(arrays(&set), 0, "nothing was written");
    feed(&mut set, &late(), &[vec![1, 2, 3, 4, 5]]);
    assert_eq!(arrays(&set), 4 * 2, "too early");
    feed(&mut set, &late(), &[vec![6]]);
    assert_eq!(arrays(&set), 4 * 6, "every layer is packed");
    let mut set = Twin::empty(&KINDS).set;
    feed(&mut set, &layered(), &[vec![1]]);
    assert_eq!(arrays(&set), 3 * 6 + 2, "the third layer stays plain");
}
