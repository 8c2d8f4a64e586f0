//! The cache algebra against a naive model: each row is the list of the columns it was fed.

mod algebra;
mod refusals;
mod schemes;
mod sharing;
mod storage;
mod stubborn;

use super::geometry::Geometry;
use super::{
    CacheSet, FullCache, LatentCache, LatentColumns, LayerCache, OwnedLayer, RecurrentCache,
    RotatingCache, Window,
};
use crate::mlx::ops::{self, Mask};
use crate::mlx::{Array, Device};

const HEADS: i32 = 2;
const DIMENSION: i32 = 3;
/// Bytes of one token's keys and values.
const TOKEN_BYTES: u64 = 2 * 4 * (HEADS * DIMENSION) as u64;
const CHOOSING_TOKEN_BYTES: u64 = 3 * 4 * (HEADS * DIMENSION) as u64;
/// Tokens whose numbers a recurrent layer remembers.
const TAIL: usize = 3;
const STATE_BYTES: u64 = 4 * (TAIL as u64 + 1);

/// What a layer of the twins is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Full,
    Rotating(i32),
    Recurrent,
    /// Latents and turned keys.
    Latent,
    /// And the keys that columns are chosen by.
    Choosing,
}

const ALL_KINDS: [Kind; 6] = [
    Kind::Full,
    Kind::Rotating(3),
    Kind::Rotating(5),
    Kind::Recurrent,
    Kind::Latent,
    Kind::Choosing,
];
const TRIMMABLE_KINDS: [Kind; 5] =
    [Kind::Full, Kind::Rotating(4), Kind::Rotating(9), Kind::Latent, Kind::Choosing];

/// A batch and, per row, the numbers of the tokens it was fed.
struct Twin {
    set: CacheSet,
    rows: Vec<Vec<f32>>,
    kinds: Vec<Kind>,
}

impl Twin {
    fn empty(kinds: &[Kind]) -> Self {
        Device::cpu();
        let layers = kinds.iter().map(|kind| match kind {
            Kind::Full => LayerCache::Full(FullCache::new()),
            Kind::Rotating(tokens) => {
                LayerCache::Rotating(RotatingCache::new(Window::new(*tokens, 0).unwrap()))
            }
            Kind::Recurrent => LayerCache::Recurrent(RecurrentCache::new(2, STATE_BYTES)),
            Kind::Latent => LayerCache::Owned(OwnedLayer::new(LatentCache::new(TOKEN_BYTES))),
            Kind::Choosing => {
                LayerCache::Owned(OwnedLayer::new(LatentCache::new(CHOOSING_TOKEN_BYTES)))
            }
        });
        let set = CacheSet::solo(layers.collect());
        Self { set, rows: vec![Vec::new()], kinds: kinds.to_vec() }
    }

    /// A row that was fed `tokens` in chunks of `chunk`.
    fn solo(kinds: &[Kind], tokens: &[f32], chunk: usize) -> Self {
        let mut twin = Self::empty(kinds);
        for chunk in tokens.chunks(chunk) {
            twin.feed(&[chunk.to_vec()]);
        }
        twin
    }

    /// Feeds each row its tokens, and holds what each layer may see of them against the rows.
    fn feed(&mut self, tokens: &[Vec<f32>]) {
        let count = tokens[0].len();
        let positions = self.set.positions(count).unwrap();
        for (row, tokens) in self.rows.iter_mut().zip(tokens) {
            row.extend(tokens);
        }
        for (index, kind) in self.kinds.clone().into_iter().enumerate() {
            match kind {
                Kind::Full | Kind::Rotating(_) => {
                    let slot = self.set.layer(index);
                    let mask = slot.mask(&positions).unwrap().clone();
                    let keys = as_columns(tokens);
                    let seen = slot.update(keys.clone(), keys.negative().unwrap()).unwrap();
                    let arrays: Vec<_> = seen.arrays().collect();
                    self.check_seen(kind, arrays[0], &mask, count);
                }
                Kind::Recurrent => self.recur(index, tokens),
                Kind::Latent | Kind::Choosing => {
                    let keys = as_columns(tokens);
                    let index_keys = (kind == Kind::Choosing).then(|| twice(&keys));
                    let new =
                        LatentColumns::plain(keys.clone(), keys.negative().unwrap(), index_keys);
                    let cache: &mut LatentCache = self.set.owned(index).unwrap();
                    let seen = cache.update(&new).unwrap();
                    let latents = seen.latents.as_plain().unwrap();
                    self.check_seen(kind, latents, &positions.full_mask, count);
                    if let Some(index_keys) = &seen.index_keys {
                        let index_keys = ops::read_f32(index_keys.as_plain().unwrap()).unwrap();
                        assert_eq!(index_keys, ops::read_f32(&twice(latents)).unwrap());
                    }
                }
            }
        }
        self.set.advance(count);
    }

    /// Each query sees the tokens up to its own, the last ones of a window, each once.
    fn check_seen(&self, kind: Kind, keys: &Array, mask: &Mask, count: usize) {
        let visible = visibility(mask, self.rows.len(), count, keys.dim(2) as usize);
        for (row, (columns, visible)) in token_numbers(keys).iter().zip(&visible).enumerate() {
            let tokens = &self.rows[row];
            for (query, visible) in visible.iter().enumerate() {
                let stop = tokens.len() - count + query + 1;
                let start = match kind {
                    Kind::Rotating(window) => stop.saturating_sub(window as usize),
                    Kind::Full | Kind::Recurrent | Kind::Latent | Kind::Choosing => 0,
                };
                let seen = columns.iter().zip(visible).filter(|(_, visible)| **visible);
                let mut seen: Vec<f32> = seen.map(|(column, _)| *column).collect();
                seen.sort_by(f32::total_cmp);
                assert_eq!(seen, tokens[start..stop], "{kind:?}, row {row}, query {query}");
            }
        }
    }

    /// Slot 0 is the sum of the tokens, slot 1 the last few of them.
    fn recur(&mut self, index: usize, tokens: &[Vec<f32>]) {
        let rows = tokens.len();
        let cache = self.set.recurrent(index).unwrap();
        let old = |slot: usize, width: usize| match cache.state(slot) {
            Some(state) => ops::read_f32(state).unwrap(),
            None => vec![0.0; rows * width],
        };
        let (mut sums, mut tails) = (old(0, 1), Vec::<f32>::new());
        for (row, tail) in old(1, TAIL).chunks(TAIL).enumerate() {
            sums[row] += tokens[row].iter().sum::<f32>();
            let all = [tail, &tokens[row]].concat();
            tails.extend(&all[all.len() - TAIL..]);
        }
        cache.set_state(0, Array::from_slice(&sums, &[rows as i32, 1]));
        cache.set_state(1, Array::from_slice(&tails, &[rows as i32, TAIL as i32]));
    }

    fn join(&mut self, other: Self) {
        self.set.extend(other.set).unwrap();
        self.rows.extend(other.rows);
    }

    fn filter(&mut self, keep: &[usize]) {
        self.set.filter(keep).unwrap();
        self.rows = keep.iter().map(|row| self.rows[*row].clone()).collect();
    }

    /// Takes every row out and builds the batch anew.
    fn rebuild(&mut self) {
        let solos = (0..self.rows.len()).map(|row| self.set.extract(row).unwrap());
        self.set = CacheSet::merge(solos.collect()).unwrap();
    }

    /// Goes on with row `row` alone, as a solo set.
    fn part(&mut self, row: usize) {
        self.set = self.set.extract(row).unwrap();
        self.rows = vec![self.rows[row].clone()];
    }

    fn trim(&mut self, tokens: usize) {
        let shortest = self.rows.iter().map(Vec::len).min().unwrap();
        let trimmed = self.set.trim(tokens).unwrap();
        assert_eq!(trimmed, tokens.min(shortest));
        self.rows.iter_mut().for_each(|row| row.truncate(row.len() - trimmed));
    }

    /// Every row comes out as it was fed.
    fn check(&self) {
        assert_eq!(self.set.rows(), self.rows.len());
        for (row, tokens) in self.rows.iter().enumerate() {
            let lone = self.set.extract(row).unwrap();
            assert_eq!(lone.geometry(), &Geometry::solo_of_width(tokens.len() as i32));
            let mut arrays = lone.arrays();
            for kind in &self.kinds {
                self.check_layer(*kind, tokens, &mut arrays);
            }
            assert_eq!(arrays.next().map(Array::shape), None);
        }
    }

    fn check_layer<'a>(
        &self,
        kind: Kind,
        tokens: &[f32],
        arrays: &mut impl Iterator<Item = &'a Array>,
    ) {
        let mut next = || arrays.next().expect("a layer has two arrays, or three");
        let (first, second) = (next(), next());
        let third = (kind == Kind::Choosing).then(&mut next);
        if kind == Kind::Recurrent {
            assert_eq!(ops::read_f32(first).unwrap(), [tokens.iter().sum::<f32>()]);
            let padded = [&[0.0; TAIL], tokens].concat();
            assert_eq!(ops::read_f32(second).unwrap(), padded[padded.len() - TAIL..]);
            return;
        }
        let columns = first.dim(2) as usize;
        match kind {
            Kind::Rotating(window) => assert!(columns >= tokens.len().min(window as usize)),
            _ => assert_eq!(columns, tokens.len()),
        }
        let held = as_columns(&[tokens[tokens.len() - columns..].to_vec()]);
        assert_eq!(first.shape(), held.shape(), "{kind:?}");
        let keys = ops::read_f32(&held).unwrap();
        let values: Vec<f32> = keys.iter().map(|key| -key).collect();
        assert_eq!(ops::read_f32(first).unwrap(), keys, "{kind:?}");
        assert_eq!(ops::read_f32(second).unwrap(), values, "{kind:?}");
        if let Some(third) = third {
            assert_eq!(ops::read_f32(third).unwrap(), ops::read_f32(&twice(&held)).unwrap());
        }
    }
}

fn twice(array: &Array) -> Array {
    array.add(array).unwrap()
}

/// Fresh token numbers, each one once and in ascending order.
struct Tokens(f32);

impl Tokens {
    fn take(&mut self, count: usize) -> Vec<f32> {
        let first = self.0;
        self.0 += count as f32;
        (0..count).map(|index| first + index as f32).collect()
    }

    fn take_for(&mut self, rows: usize, count: usize) -> Vec<Vec<f32>> {
        (0..rows).map(|_| self.take(count)).collect()
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Self(1.0)
    }
}

/// `[rows, HEADS, tokens, DIMENSION]`, every number distinct per head and dimension.
fn as_columns(rows: &[Vec<f32>]) -> Array {
    let mut data = Vec::new();
    for row in rows {
        for head in 0..HEADS {
            for token in row {
                data.extend((0..DIMENSION).map(|d| token * 10.0 + (head * DIMENSION + d) as f32));
            }
        }
    }
    Array::from_slice(&data, &[rows.len() as i32, HEADS, rows[0].len() as i32, DIMENSION])
}

/// Per row, the token of each column.
fn token_numbers(keys: &Array) -> Vec<Vec<f32>> {
    let columns = keys.dim(2) as usize;
    let stride = DIMENSION as usize;
    let values = ops::read_f32(keys).unwrap();
    let rows = values.chunks(HEADS as usize * columns * stride);
    rows.map(|row| row[..columns * stride].chunks(stride).map(|key| key[0] / 10.0).collect())
        .collect()
}

/// Per row and query, which columns `mask` shows.
fn visibility(mask: &Mask, rows: usize, queries: usize, columns: usize) -> Vec<Vec<Vec<bool>>> {
    let causal = |query: usize| (0..columns).map(move |column| column <= columns - queries + query);
    match mask {
        Mask::None => {
            assert_eq!(queries, 1);
            vec![vec![vec![true; columns]]; rows]
        }
        Mask::Causal => vec![(0..queries).map(|query| causal(query).collect()).collect(); rows],
        Mask::Array(array) => {
            let values = ops::read_f32(array).unwrap();
            assert_eq!(values.len() % (queries * columns), 0, "{:?}", array.shape());
            let query = |query: &[f32]| query.iter().map(|seen| *seen == 1.0).collect();
            let row = |row: &[f32]| row.chunks(columns).map(query).collect();
            let shown: Vec<Vec<Vec<bool>>> = values.chunks(queries * columns).map(row).collect();
            if shown.len() == 1 { vec![shown[0].clone(); rows] } else { shown }
        }
    }
}
