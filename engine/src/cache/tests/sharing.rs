//! Shares that go on apart from their donors, and rows that are written down and restored.

use proptest::prelude::*;

use super::super::geometry::granules;
use super::super::{Packing, SavedSet};
use super::{ALL_KINDS, CacheSet, Kind, TRIMMABLE_KINDS, Tokens, Twin};
use crate::error::Code;
use crate::mlx::{Device, tensor};

impl Twin {
    fn share(&self) -> Self {
        Self { set: self.set.share(), rows: self.rows.clone(), kinds: self.kinds.clone() }
    }

    /// The same row, written down as bytes and read again.
    fn rewritten(&self) -> Self {
        let (saved, arrays) = self.set.save().unwrap();
        let text = serde_json::to_string(&saved).unwrap();
        let arrays = arrays.iter().map(|array| {
            let spec = tensor::spec(array).unwrap();
            tensor::write(spec.dtype, &spec.shape, &tensor::read(array).unwrap()).unwrap()
        });
        let saved: SavedSet = serde_json::from_str(&text).unwrap();
        let set = CacheSet::restore(Self::empty(&self.kinds).set, &saved, arrays.collect());
        Self { set: set.unwrap(), rows: self.rows.clone(), kinds: self.kinds.clone() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_share_and_its_donor_never_see_each_others_tokens(
        prompt in 1usize..300, chunk in 1usize..200, steps in prop::collection::vec(1usize..20, 1..6),
    ) {
        let mut tokens = Tokens::default();
        let mut donor = Twin::solo(&ALL_KINDS, &tokens.take(prompt), chunk);
        let mut heirs = [donor.share(), donor.share()];
        for count in steps {
            donor.feed(&tokens.take_for(1, count));
            heirs.iter_mut().for_each(|heir| heir.feed(&tokens.take_for(1, count)));
        }
        donor.check();
        heirs.iter().for_each(Twin::check);
    }

    #[test]
    fn a_share_is_taken_back_to_any_length_and_holds_no_more_than_its_granules(
        prompt in 2usize..700, back in 1usize..700, steps in 1usize..20,
    ) {
        let kinds = [Kind::Full, Kind::Rotating(900), Kind::Latent, Kind::Choosing];
        let mut tokens = Tokens::default();
        let donor = Twin::solo(&kinds, &tokens.take(prompt), 256);
        let mut heir = donor.share();
        heir.trim(back.min(prompt - 1));
        let left = heir.rows[0].len();
        let columns = heir.set.arrays().next().unwrap().dim(2);
        prop_assert!(columns <= granules(left as i32));
        (0..steps).for_each(|_| heir.feed(&tokens.take_for(1, 1)));
        heir.check();
        donor.check();
    }

    #[test]
    fn a_row_that_was_written_down_goes_on_as_if_it_had_not(
        prompt in 1usize..40, chunk in 1usize..20, steps in 0usize..20, more in 1usize..9,
        trimmable in any::<bool>(),
    ) {
        let kinds: &[Kind] = if trimmable { &TRIMMABLE_KINDS } else { &ALL_KINDS };
        let mut tokens = Tokens::default();
        let mut row = Twin::solo(kinds, &tokens.take(prompt), chunk);
        (0..steps).for_each(|_| row.feed(&tokens.take_for(1, 1)));
        let mut restored = row.rewritten();
        prop_assert_eq!(restored.set.can_trim(), row.set.can_trim());
        prop_assert!(restored.set.bytes() <= row.set.bytes());
        restored.check();
        restored.feed(&tokens.take_for(1, more));
        restored.feed(&tokens.take_for(1, 1));
        restored.check();
        let mut other = Twin::solo(kinds, &tokens.take(chunk), chunk);
        other.join(restored);
        other.feed(&tokens.take_for(2, 1));
        other.check();
    }
}

#[test]
fn packed_columns_are_written_down_and_restored_as_they_are() {
    use super::super::{FullCache, KeyValues, LayerCache};
    use crate::mlx::{Array, ops};
    Device::cpu();
    let wave: Vec<f32> = (0..2 * 5 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
    let columns = Array::from_slice(&wave, &[1, 2, 5, 64]);
    let fresh = || CacheSet::solo(vec![LayerCache::Full(FullCache::new())]);
    let mut set = fresh();
    let both = KeyValues::plain(columns.clone(), columns.negative().unwrap());
    set.layer(0).write(&both.pack(Packing { group_size: 32, bits: 4 }).unwrap()).unwrap();
    set.advance(5);
    let (saved, arrays) = set.save().unwrap();
    let restored = CacheSet::restore(fresh(), &saved, arrays).unwrap();
    let numbers = |set: &CacheSet| {
        let lone = set.extract(0).unwrap();
        lone.arrays().map(|array| tensor::read(array).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&restored), numbers(&set));
    assert!(ops::read_f32(restored.arrays().nth(1).unwrap()).is_ok());
}

#[test]
fn what_another_model_wrote_down_is_refused() {
    let row = Twin::solo(&[Kind::Full, Kind::Rotating(5)], &[1.0, 2.0], 2);
    let (saved, arrays) = row.set.save().unwrap();
    for kinds in [
        &[Kind::Full][..],
        &[Kind::Full, Kind::Rotating(6)],
        &[Kind::Full, Kind::Full],
        &[Kind::Recurrent, Kind::Rotating(5)],
    ] {
        let restored = CacheSet::restore(Twin::empty(kinds).set, &saved, arrays.clone());
        assert_eq!(restored.unwrap_err().code(), Code::BadModel, "{kinds:?}");
    }
    let same = || Twin::empty(&[Kind::Full, Kind::Rotating(5)]).set;
    for arrays in [&arrays[1..], &[&arrays[..], &arrays[..1]].concat()] {
        assert!(CacheSet::restore(same(), &saved, arrays.to_vec()).is_err());
    }
    assert!(CacheSet::restore(same(), &saved, arrays).is_ok());
}

#[test]
fn a_batch_is_not_written_down() {
    let mut tokens = Tokens::default();
    let mut batch = Twin::solo(&ALL_KINDS, &tokens.take(3), 3);
    batch.join(Twin::solo(&ALL_KINDS, &tokens.take(5), 3));
    assert_eq!(batch.set.save().unwrap_err().code(), Code::Internal);
}
