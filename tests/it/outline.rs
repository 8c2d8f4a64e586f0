//! What a config says of its model is what the loaded model says, for every tiny checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use slipstream_engine::cache::{KvScheme, Packing};
use slipstream_engine::mlx::{self, Device, Dtype, shards};
use slipstream_engine::model::outline::{Outline, WeightTally};
use slipstream_engine::model::{self, Family, LoadOptions, Loaded, ModelConfig};

use crate::goldens;

fn schemes() -> Vec<KvScheme> {
    let uniform = |bits, group_size| KvScheme::Uniform {
        packing: Packing::new(bits, group_size).unwrap(),
        start_tokens: 0,
    };
    vec![KvScheme::Plain, uniform(8, 64), uniform(8, 32), uniform(4, 64), uniform(4, 32)]
}

fn tally(outline: &Outline, name: &str) -> WeightTally {
    let files = mlx::shard_files(&goldens::directory().join(name)).unwrap();
    let headers: Vec<_> = files.iter().map(|file| shards::read_header(file).unwrap()).collect();
    WeightTally::of(outline, headers.iter().flatten())
}

fn check(name: &str, dtype: Option<Dtype>) {
    let directory = goldens::directory().join(name);
    let outline = Outline::of_config(&ModelConfig::read(&directory).unwrap())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let options = LoadOptions { dtype, back_end: Device::cpu().back_end() };
    let loaded = load(&directory, options);
    let Loaded { model, weights_bytes, value_bytes, .. } = &loaded;
    for scheme in schemes() {
        let expected = loaded.kv_profile(&scheme);
        assert_eq!(outline.kv_profile(&scheme, *value_bytes), expected, "{name}: {scheme:?}");
    }
    assert_eq!(outline.token_shapes(), model.token_shapes(), "{name}");
    assert_eq!(tally(&outline, name).all.bytes(*value_bytes), *weights_bytes, "{name}");
    assert_eq!(outline.context_tokens, loaded.context_tokens, "{name}");
    assert_eq!(outline.vocabulary, loaded.vocabulary as u64, "{name}");
    assert_eq!(outline.hidden, loaded.hidden_size as u64, "{name}");
    let kinds: BTreeSet<_> = loaded.model.new_caches().kinds().collect();
    assert_eq!(outline.cache_kinds().into_iter().collect::<BTreeSet<_>>(), kinds, "{name}");
    assert_eq!(outline.serial_reason().map(str::to_owned), loaded.serial_because, "{name}");
}

fn load(directory: &Path, options: LoadOptions) -> Loaded {
    model::load(directory, options).unwrap_or_else(|error| panic!("{directory:?}: {error}"))
}

#[test]
fn every_checkpoint_is_what_its_config_and_its_headers_say() {
    for name in goldens::checkpoints() {
        check(&name, None);
    }
}

#[test]
fn weights_take_what_the_headers_say_in_half_types_too() {
    for name in goldens::checkpoints() {
        let options =
            LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
        // The processor does not multiply dense experts in half types.
        if model::load(&goldens::directory().join(&name), options).is_ok() {
            check(&name, Some(Dtype::Bfloat16));
        }
    }
}

#[test]
fn every_family_of_the_registry_has_an_outline_and_no_other() {
    let registered: Vec<_> = Family::all().iter().map(|family| family.model_type).collect();
    assert_eq!(Outline::model_types().collect::<Vec<_>>(), registered);
}
