//! What caches will not do.

use super::stubborn::Stubborn;
use super::{
    ALL_KINDS, CacheSet, FullCache, Kind, LatentCache, LatentColumns, LayerCache, OwnedLayer,
    RotatingCache, Tokens, Twin, Window,
};
use crate::error::Code;
use crate::mlx::{Array, Device};

fn with_sinks() -> CacheSet {
    let window = Window::new(6, 2).unwrap();
    CacheSet::solo(vec![LayerCache::Rotating(RotatingCache::new(window))])
}

fn stubborn() -> CacheSet {
    Device::cpu();
    CacheSet::solo(vec![LayerCache::Owned(OwnedLayer::new(Stubborn::new()))])
}

#[test]
fn a_window_with_sinks_says_why_it_is_serial_and_does_not_join() {
    let mut set = with_sinks();
    let reason = set.serial_because().unwrap();
    assert_eq!(reason, "its windows of 6 tokens keep the first 2, which a batch would lose");
    assert_eq!(set.extend(with_sinks()).unwrap_err().code(), Code::Internal);
    let error = CacheSet::merge(vec![with_sinks(), with_sinks()]).unwrap_err();
    assert!(error.message().contains(&reason), "{error}");
}

#[test]
fn an_owned_cache_says_why_it_is_serial() {
    let mut set = stubborn();
    assert_eq!(set.serial_because().unwrap(), "it is stubborn");
    assert!(set.extend(stubborn()).is_err());
    assert!(!set.can_trim());
}

#[test]
fn all_other_kinds_share_a_batch() {
    assert_eq!(Twin::empty(&ALL_KINDS).set.serial_because(), None);
}

#[test]
fn a_window_keeps_less_than_it_holds() {
    for (tokens, keep) in [(4, 4), (4, 5), (4, -1), (0, 0), (-3, 0)] {
        let error = Window::new(tokens, keep).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.message().contains(&format!("{tokens} tokens")), "{error}");
    }
}

#[test]
fn layers_of_different_kinds_do_not_meet() {
    let full = || CacheSet::solo(vec![LayerCache::Full(FullCache::new())]);
    let error = full().extend(Twin::empty(&[Kind::Recurrent]).set).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let error = CacheSet::merge(vec![full(), Twin::empty(&[Kind::Latent]).set]).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
}

#[test]
fn a_layer_is_used_as_what_it_is() {
    let mut set = Twin::empty(&ALL_KINDS).set;
    let positions = set.positions(1).unwrap();
    let (full, recurrent, owned) = (0, 3, 4);
    assert!(set.recurrent(full).is_err());
    assert!(set.owned::<LatentCache>(recurrent).is_err());
    assert!(set.owned::<Stubborn>(owned).is_err());
    assert!(set.owned::<LatentCache>(owned).is_ok());
    let column = || Array::from_slice(&[0.0_f32], &[1, 1, 1, 1]);
    for index in [recurrent, owned] {
        assert!(set.layer(index).mask(&positions).is_err());
        assert!(set.layer(index).update(column(), column()).is_err());
    }
}

#[test]
fn a_batch_is_not_merged_as_a_row() {
    let mut tokens = Tokens::default();
    let mut twin = Twin::solo(&[Kind::Full], &tokens.take(2), 2);
    twin.join(Twin::solo(&[Kind::Full], &tokens.take(2), 2));
    assert!(CacheSet::merge(vec![twin.set]).is_err());
    assert!(CacheSet::merge(Vec::new()).is_err());
}

#[test]
fn a_state_and_a_wrapped_ring_take_nothing_back() {
    let mut tokens = Tokens::default();
    let mut twin = Twin::solo(&[Kind::Recurrent], &tokens.take(2), 2);
    assert_eq!(twin.set.trim(1).unwrap_err().code(), Code::Internal);
    let mut twin = Twin::solo(&[Kind::Full, Kind::Rotating(4)], &tokens.take(4), 4);
    assert!(twin.set.trim(1).is_err());
    twin.check();
    assert_eq!(twin.set.geometry().width(), 4, "nothing changed");
}

#[test]
fn columns_with_and_without_index_keys_do_not_meet() {
    Device::cpu();
    let column = || Array::from_slice(&[0.0_f32], &[1, 1, 1, 1]);
    let caches = || {
        let (mut plain, mut choosing) = (LatentCache::new(8), LatentCache::new(12));
        plain.update(&LatentColumns::plain(column(), column(), None)).unwrap();
        choosing.update(&LatentColumns::plain(column(), column(), Some(column()))).unwrap();
        let solo = |cache| CacheSet::solo(vec![LayerCache::Owned(OwnedLayer::new(cache))]);
        (solo(plain), solo(choosing))
    };
    let (mut plain, choosing) = caches();
    assert_eq!(plain.extend(choosing).unwrap_err().code(), Code::Internal);
    let (plain, choosing) = caches();
    assert_eq!(CacheSet::merge(vec![plain, choosing]).unwrap_err().code(), Code::Internal);
}
