//! What caches store: bytes as projected, and columns in any form.

use proptest::prelude::*;

use super::super::columns::{AffineColumns, Columns};
use super::super::{KeyValues, LatentCache, LatentColumns, OwnedCache, Packing};
use super::{CHOOSING_TOKEN_BYTES, CacheSet, Kind, STATE_BYTES, TOKEN_BYTES, Tokens, Twin};
use crate::limits::KV_GRANULE_TOKENS;
use crate::mlx::{Array, Device};
use crate::mlx::{ops, sparse};

const KINDS: [Kind; 6] = [
    Kind::Full,
    Kind::Rotating(7),
    Kind::Rotating(300),
    Kind::Recurrent,
    Kind::Latent,
    Kind::Choosing,
];

/// The widest of their windows.
const WINDOW: usize = 300;

fn projected(twin: &Twin) -> u64 {
    twin.set.profile(|_| TOKEN_BYTES).batch_bytes(twin.rows.len(), longest(twin))
}

fn longest(twin: &Twin) -> usize {
    twin.rows.iter().map(Vec::len).max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_lone_row_holds_what_its_profile_says(
        prompt in 1usize..700, chunk in 1usize..400, steps in 1usize..300,
    ) {
        let mut tokens = Tokens::default();
        let mut twin = Twin::solo(&KINDS, &tokens.take(prompt), chunk);
        let profile = twin.set.profile(|_| TOKEN_BYTES);
        prop_assert!(twin.set.bytes() <= profile.prefill_bytes(prompt, chunk));
        for _ in 0..steps {
            twin.feed(&tokens.take_for(1, 1));
        }
        prop_assert_eq!(twin.set.bytes(), profile.row_bytes(prompt + steps));
    }

    #[test]
    fn a_batch_holds_no_more_than_its_profile_says_and_just_that_where_granules_end(
        rows in prop::collection::vec((1usize..600, 1usize..300), 2..5),
        rounds in prop::collection::vec((1usize..40, any::<u64>()), 1..5),
    ) {
        let mut tokens = Tokens::default();
        let mut rows = rows.into_iter();
        let mut alone = |(prompt, chunk)| {
            let mut twin = Twin::solo(&KINDS, &tokens.take(prompt), chunk);
            twin.feed(&tokens.take_for(1, 1));
            twin
        };
        let mut twin = alone(rows.next().unwrap());
        rows.for_each(|row| twin.join(alone(row)));
        for (steps, leavers) in rounds {
            for _ in 0..steps {
                twin.feed(&tokens.take_for(twin.rows.len(), 1));
                prop_assert!(twin.set.bytes() <= projected(&twin));
                let longest = longest(&twin);
                if longest.is_multiple_of(KV_GRANULE_TOKENS) && longest >= WINDOW {
                    prop_assert_eq!(twin.set.bytes(), projected(&twin));
                }
            }
            let keep: Vec<_> = (0..twin.rows.len()).filter(|row| leavers >> row & 1 == 1).collect();
            if !keep.is_empty() {
                twin.filter(&keep);
                prop_assert!(twin.set.bytes() <= projected(&twin));
            }
        }
    }
}

#[test]
fn a_profile_names_every_layer() {
    let profile = Twin::empty(&KINDS).set.profile(|_| TOKEN_BYTES);
    assert_eq!(profile.layers.len(), KINDS.len());
    let columns = TOKEN_BYTES * (256 + 7 + 256 + 256) + CHOOSING_TOKEN_BYTES * 256;
    assert_eq!(profile.row_bytes(1), columns + STATE_BYTES);
}

const PACKING: Packing = Packing { group_size: 32, bits: 4 };

/// The same rows twice: in plain columns, and in packed ones.
struct Pair {
    plain: CacheSet,
    packed: CacheSet,
}

impl Pair {
    fn empty() -> Self {
        let kinds = [Kind::Full, Kind::Rotating(5)];
        Self { plain: Twin::empty(&kinds).set, packed: Twin::empty(&kinds).set }
    }

    fn feed(&mut self, rows: usize, tokens: usize, first: f32) {
        let keys = wide_columns(rows, tokens, first);
        let new = KeyValues::plain(keys.clone(), keys.negative().unwrap());
        for layer in 0..2 {
            let seen = self.plain.layer(layer).write(&new).unwrap();
            let packed = self.packed.layer(layer).write(&pack(&new)).unwrap();
            assert_eq!(seen.count(), packed.count());
        }
        self.plain.advance(tokens);
        self.packed.advance(tokens);
    }

    fn both(&mut self, change: impl Fn(&mut CacheSet)) {
        change(&mut self.plain);
        change(&mut self.packed);
    }

    /// Packing what the plain rows hold gives what the packed ones hold.
    fn check(&self) {
        for row in 0..self.plain.rows() {
            let plain = self.plain.extract(row).unwrap();
            let packed = self.packed.extract(row).unwrap();
            let plain: Vec<_> = plain.arrays().collect();
            let expected: Vec<_> = plain.iter().flat_map(|array| triple(array)).collect();
            let got: Vec<_> = packed.arrays().cloned().collect();
            assert_eq!(bits(&got), bits(&expected), "row {row}");
        }
    }
}

fn wide_columns(rows: usize, tokens: usize, first: f32) -> Array {
    let count = rows * tokens * 32;
    let value = |index: usize| (first * 7.0 + index as f32 * 0.37).sin();
    let data: Vec<f32> = (0..count).map(value).collect();
    Array::from_slice(&data, &[rows as i32, 1, tokens as i32, 32])
}

fn triple(array: &Array) -> [Array; 3] {
    let (packed, scales, biases) =
        ops::quantize(array, (PACKING.group_size, PACKING.bits)).unwrap();
    [packed, scales, biases]
}

fn pack(plain: &KeyValues) -> KeyValues {
    let change = |columns: &Columns| {
        let array = columns.arrays().next().unwrap();
        let [packed, scales, biases] = triple(array);
        Ok(Columns::Affine(AffineColumns { packed, scales, biases, packing: PACKING }))
    };
    plain.map(change).unwrap()
}

fn bits(arrays: &[Array]) -> Vec<(Vec<i32>, Vec<f32>)> {
    let read = |array: &Array| (array.shape().to_vec(), ops::read_f32(array).unwrap());
    arrays.iter().map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn packed_columns_move_as_plain_ones(
        prompts in prop::collection::vec(1usize..13, 1..4),
        steps in 1usize..12,
        leaver in 0usize..4,
    ) {
        Device::cpu();
        let mut batch = Pair::empty();
        batch.feed(1, prompts[0], 0.0);
        for (index, prompt) in prompts.iter().enumerate().skip(1) {
            let mut joiner = Pair::empty();
            joiner.feed(1, *prompt, index as f32);
            joiner.feed(1, 1, index as f32 + 0.5);
            batch.plain.extend(joiner.plain).unwrap();
            batch.packed.extend(joiner.packed).unwrap();
            batch.feed(index + 1, 1, 10.0 + index as f32);
        }
        for step in 0..steps {
            batch.feed(prompts.len(), 1, 20.0 + step as f32);
        }
        batch.check();
        let keep: Vec<_> = (0..prompts.len()).filter(|row| *row != leaver).collect();
        if !keep.is_empty() {
            batch.both(|set| set.filter(&keep).unwrap());
            batch.feed(keep.len(), 3, 40.0);
            batch.check();
            batch.both(|set| {
                let solos = (0..set.rows()).map(|row| set.extract(row).unwrap()).collect();
                *set = CacheSet::merge(solos).unwrap();
            });
            batch.feed(keep.len(), 1, 50.0);
            batch.check();
        }
    }
}

/// A layer that attends to everything does not look at its index keys.
#[test]
fn whoever_computes_the_latents_has_computed_the_index_keys() {
    Device::cpu();
    let mut cache = LatentCache::new(CHOOSING_TOKEN_BYTES);
    for _ in 0..3 {
        let column = || Array::from_slice(&[1.0_f32], &[1, 1, 1, 1]).negative().unwrap();
        let new = LatentColumns::plain(column(), column(), Some(column()));
        let seen = cache.update(&new).unwrap();
        let index_keys = cache.arrays()[2].clone();
        assert!(!sparse::is_computed(&index_keys));
        ops::evaluate([seen.latents.as_plain().unwrap()]).unwrap();
        assert!(sparse::is_computed(&index_keys));
    }
}
