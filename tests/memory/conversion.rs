//! Packing a prompt's KV caches: layer by layer, so that never all layers are held twice.

use slipstream_engine::cache::{CacheSet, FullCache, KvScheme, LayerCache, Packing};
use slipstream_engine::mlx::{Array, Device, Dtype, ops};

use crate::watch;

const LAYERS: usize = 12;
const TOKENS: i32 = 512;

/// Caches of `LAYERS` layers that hold `TOKENS` plain tokens, evaluated.
fn filled() -> CacheSet {
    let mut caches =
        CacheSet::solo((0..LAYERS).map(|_| LayerCache::Full(FullCache::new())).collect());
    for layer in 0..LAYERS {
        caches.layer(layer).update(columns(), columns()).unwrap();
    }
    caches.advance(TOKENS.unsigned_abs() as usize);
    ops::evaluate(caches.arrays()).unwrap();
    caches
}

/// Keys or values of `TOKENS` tokens: `[1, 4, S, 64]`.
fn columns() -> Array {
    let ones = ops::shift(&ops::zeros(&[1, 4, TOKENS, 64], Dtype::Float32).unwrap(), 1.0);
    ones.unwrap()
}

#[test]
fn packing_caches_takes_little_more_than_one_layer_beside_them() {
    Device::cpu();
    let mut caches = filled();
    let layer_bytes = caches.bytes() / LAYERS as u64;
    let packing = Packing::new(8, 64).unwrap();
    let scheme = KvScheme::Uniform { packing, start_tokens: 0 };
    let watched = watch();
    caches.convert(&scheme).unwrap();
    assert!(caches.bytes() < LAYERS as u64 * layer_bytes / 2, "packed");
    let peak_bytes = watched.peak_bytes();
    assert!(peak_bytes < 2 * layer_bytes, "{peak_bytes} beside layers of {layer_bytes}");
}
