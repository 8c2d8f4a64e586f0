//! Sliding-window caches under scripts of operations: every column, mask, offset and padding as
//! mlx-lm's rotating caches have them.

use serde::Deserialize;
use slipstream_engine::cache::{CacheSet, LayerCache, RotatingCache, Window};
use slipstream_engine::mlx::ops::{self, Mask};
use slipstream_engine::mlx::{Array, Device, Dtype};

#[derive(Deserialize)]
struct Golden {
    scripts: Vec<Script>,
}

#[derive(Deserialize)]
struct Script {
    name: String,
    window: i32,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    #[serde(flatten)]
    operation: Operation,
    /// What the cache that was made or changed is like afterwards.
    #[serde(flatten)]
    state: Option<State>,
}

/// Caches are numbered in the order in which they are opened, merged and extracted.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Open { kind: Kind, keep: i32 },
    Feed { cache: usize, columns: Vec<Vec<i32>>, mask: GoldenMask, seen: Vec<Vec<i32>> },
    Extend { cache: usize, joiner: usize },
    Merge { caches: Vec<usize> },
    Filter { cache: usize, keep: Vec<usize> },
    Extract { cache: usize, row: usize, held: Vec<i32> },
    Trim { cache: usize, tokens: usize },
}

/// Which of mlx-lm's two classes it was there; here they are one.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Solo,
    Batch,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum GoldenMask {
    Named(Option<String>),
    /// Per row, per query: a 1 for each column that is seen.
    Columns(Vec<Vec<String>>),
}

#[derive(Deserialize)]
struct State {
    offsets: Vec<i32>,
    can_trim: bool,
    left_padding: Option<Vec<i32>>,
}

/// The caches of a script, by number; `None` once they went into another.
struct Caches {
    sets: Vec<Option<(CacheSet, Kind)>>,
    window: i32,
}

impl Caches {
    fn apply(&mut self, operation: &Operation, place: &str) -> usize {
        match operation {
            Operation::Open { kind, keep } => {
                let window = Window::new(self.window, *keep).unwrap();
                let layer = LayerCache::Rotating(RotatingCache::new(window));
                self.add(CacheSet::solo(vec![layer]), *kind)
            }
            Operation::Feed { cache, columns, mask, seen } => {
                self.feed(*cache, columns, (mask, seen), place);
                *cache
            }
            Operation::Extend { cache, joiner } => {
                let (joiner, _) = self.sets[*joiner].take().unwrap();
                self.set(*cache).extend(joiner).unwrap();
                *cache
            }
            Operation::Merge { caches } => {
                let solos = caches.iter().map(|cache| self.sets[*cache].take().unwrap().0);
                let merged = CacheSet::merge(solos.collect()).unwrap();
                self.add(merged, Kind::Batch)
            }
            Operation::Filter { cache, keep } => {
                self.set(*cache).filter(keep).unwrap();
                *cache
            }
            Operation::Extract { cache, row, held } => {
                let lone = self.set(*cache).extract(*row).unwrap();
                let arrays: Vec<_> = lone.arrays().cloned().collect();
                let held = std::slice::from_ref(held);
                assert_eq!(numbers(&arrays[0], 1.0), held, "{place}: keys");
                assert_eq!(numbers(&arrays[1], -1.0), held, "{place}: values");
                self.add(lone, Kind::Solo)
            }
            Operation::Trim { cache, tokens } => {
                assert_eq!(self.set(*cache).trim(*tokens).unwrap(), *tokens, "{place}");
                *cache
            }
        }
    }

    fn feed(
        &mut self,
        cache: usize,
        columns: &[Vec<i32>],
        (mask, seen): (&GoldenMask, &[Vec<i32>]),
        place: &str,
    ) {
        let kind = self.sets[cache].as_ref().unwrap().1;
        let tokens = columns[0].len();
        let set = self.set(cache);
        let positions = set.positions(tokens).unwrap();
        let keys = as_keys(columns);
        let values = keys.negative().unwrap();
        let got = set.layer(0).update(keys, values).unwrap();
        set.advance(tokens);
        let arrays: Vec<_> = got.arrays().collect();
        assert_eq!(numbers(arrays[0], 1.0), seen, "{place}: keys");
        assert_eq!(numbers(arrays[1], -1.0), seen, "{place}: values");
        let shape = (columns.len(), tokens, seen[0].len());
        check_mask(&positions.ring_masks[0], mask, kind, shape, place);
    }

    fn check(&self, cache: usize, state: &State, place: &str) {
        let (set, kind) = self.sets[cache].as_ref().unwrap();
        let geometry = set.geometry();
        let offsets: Vec<i32> =
            geometry.left_padding().iter().map(|padding| geometry.width() - padding).collect();
        assert_eq!(offsets, state.offsets, "{place}: offsets");
        assert_eq!(set.can_trim(), state.can_trim, "{place}: can_trim");
        if let Some(padding) = &state.left_padding {
            assert_eq!(set.rings()[0].left_padding(), padding, "{place}: left padding");
        } else {
            assert!(*kind == Kind::Solo, "{place}: a batch without paddings");
        }
    }

    fn set(&mut self, cache: usize) -> &mut CacheSet {
        &mut self.sets[cache].as_mut().unwrap().0
    }

    fn add(&mut self, set: CacheSet, kind: Kind) -> usize {
        self.sets.push(Some((set, kind)));
        self.sets.len() - 1
    }
}

/// Keys `[B, 1, S, 2]`: the digits of each number to base 256.
fn as_keys(columns: &[Vec<i32>]) -> Array {
    let digits: Vec<i32> =
        columns.iter().flatten().flat_map(|number| [number / 256, number % 256]).collect();
    let shape = [ops::axis_index(columns.len()), 1, ops::axis_index(columns[0].len()), 2];
    Array::from_slice(&digits, &shape).as_dtype(Dtype::Bfloat16).unwrap()
}

fn numbers(array: &Array, sign: f32) -> Vec<Vec<i32>> {
    assert_eq!(array.dtype(), Dtype::Bfloat16);
    let columns = ops::read_f32(array).unwrap();
    let numbers: Vec<i32> = columns
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[high, low]| (sign * (high * 256.0 + low)) as i32)
        .collect();
    numbers.chunks(array.dim(2) as usize).map(<[i32]>::to_vec).collect()
}

/// A lone row's mask must be of the oracle's kind. A batch's is always an array there; ours may be
/// none or causal where it hides the same.
fn check_mask(
    got: &Mask,
    wanted: &GoldenMask,
    kind: Kind,
    (rows, queries, columns): (usize, usize, usize),
    place: &str,
) {
    let wanted = match wanted {
        GoldenMask::Columns(wanted) => wanted,
        GoldenMask::Named(name) => {
            let got = match got {
                Mask::None => None,
                Mask::Causal => Some("causal"),
                Mask::Array(_) => Some("array"),
            };
            return assert_eq!(got, name.as_deref(), "{place}: mask");
        }
    };
    let bits = |query: &[f32]| -> String {
        query.iter().map(|seen| if *seen == 1.0 { '1' } else { '0' }).collect()
    };
    let got: Vec<Vec<String>> = match got {
        Mask::Array(array) => {
            let values = ops::read_f32(array).unwrap();
            let rows = values.chunks(queries * columns);
            rows.map(|row| row.chunks(columns).map(bits).collect()).collect()
        }
        Mask::None | Mask::Causal => {
            assert!(kind == Kind::Batch, "{place}: a lone row has no mask array");
            let seen = |query: usize| columns - queries + query + 1;
            let query = |query| "1".repeat(seen(query)) + &"0".repeat(columns - seen(query));
            vec![(0..queries).map(query).collect()]
        }
    };
    // One row of masks serves all rows of the batch.
    let got = if got.len() == 1 { vec![got[0].clone(); rows] } else { got };
    let wanted = if wanted.len() == 1 { vec![wanted[0].clone(); rows] } else { wanted.clone() };
    assert_eq!(got, wanted, "{place}: mask");
}

#[test]
fn sliding_windows_hold_and_see_what_mlx_lms_rotating_caches_do() {
    Device::cpu();
    let golden: Golden = super::read_json(&super::directory().join("rotating.json"));
    assert!(!golden.scripts.is_empty());
    for script in &golden.scripts {
        let mut caches = Caches { sets: Vec::new(), window: script.window };
        for (index, step) in script.steps.iter().enumerate() {
            let place = format!("{}: step {index}", script.name);
            let cache = caches.apply(&step.operation, &place);
            match (&step.state, &step.operation) {
                (Some(state), _) => caches.check(cache, state, &place),
                (None, operation) => {
                    assert!(matches!(operation, Operation::Open { .. }), "{place}");
                }
            }
        }
    }
}
