//! What rows of latent attention owe one another, and what they cost.

use serde_json::Value;
use slipstream_engine::cache::{CacheSet, KvScheme, Packing};
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Loaded, Model};
use slipstream_tests::random::Random;

use super::variant;

const CHECKPOINTS: [&str; 6] = [
    "glm4_moe_lite-tiny",
    "glm4_moe_lite-tiny-dense",
    "glm4_moe_lite-tiny-4bit",
    "glm_moe_dsa-tiny",
    "glm_moe_dsa-tiny-dense",
    "glm_moe_dsa-tiny-4bit",
];

/// In f32 sums in another order differ by this at most; the largest difference seen was 2.4e-5.
const NEAR: f32 = 1e-4;

fn load(checkpoint: &str) -> Loaded {
    let directory = super::super::directory().join(checkpoint);
    let options = LoadOptions { dtype: Some(Dtype::Float32), back_end: Device::cpu().back_end() };
    model::load(&directory, options).unwrap()
}

fn tokens(random: &mut Random, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.between(0, 255) as u32).collect()
}

/// One forward of each row's tokens, all of one length: the logits after the last.
fn forward(model: &dyn Model, caches: &mut CacheSet, rows: &[&[u32]]) -> Vec<Vec<f32>> {
    super::super::forward(model, caches, &rows.concat())
}

/// A row as it is served: the prompt but for its last token, then token by token.
fn solo(model: &dyn Model, prompt: &[u32]) -> CacheSet {
    let mut caches = model.new_caches();
    let (last, rest) = prompt.split_last().unwrap();
    if !rest.is_empty() {
        forward(model, &mut caches, &[rest]);
    }
    forward(model, &mut caches, &[&[*last]]);
    caches
}

fn assert_near(got: &[f32], wanted: &[f32], place: &str) {
    for (got, wanted) in got.iter().zip(wanted) {
        assert!((got - wanted).abs() <= NEAR, "{place}: {got}, alone it is {wanted}");
    }
}

/// Alone a row may see less than its indexers choose while its batch, as wide as the longest, is past
/// that: its logits must be those of its run alone, but for the order of sums. So with steps of one
/// token and of several, and when rows come, leave and go on alone with what was extracted of them.
#[test]
fn neighbours_do_not_change_a_row_on_either_side_of_what_is_chosen() {
    for checkpoint in CHECKPOINTS {
        let model = load(checkpoint).model;
        let mut random = Random::new(11);
        for round in 0..6 {
            let lengths: Vec<usize> = (0..3).map(|_| random.size(1, 24)).collect();
            let prompts: Vec<_> = lengths.iter().map(|count| tokens(&mut random, *count)).collect();
            let place = format!("{checkpoint}, round {round}: {lengths:?}");
            let mut alone: Vec<_> = prompts.iter().map(|prompt| solo(&*model, prompt)).collect();
            let mut solos = prompts.iter().map(|prompt| solo(&*model, prompt));
            let mut batch = solos.next().unwrap();
            solos.for_each(|row| batch.extend(row).unwrap());
            let mut rows: Vec<usize> = (0..3).collect();
            for (step, count) in [1, 1, 3, 1].into_iter().enumerate() {
                let fed: Vec<_> = rows.iter().map(|_| tokens(&mut random, count)).collect();
                let fed: Vec<&[u32]> = fed.iter().map(Vec::as_slice).collect();
                let got = forward(&*model, &mut batch, &fed);
                for (index, row) in rows.iter().enumerate() {
                    let wanted = forward(&*model, &mut alone[*row], &fed[index..=index]);
                    assert_near(&got[index], &wanted[0], &place);
                }
                if step == 1 {
                    let keep = random.size(0, 2);
                    batch.filter(&[keep, (keep + 1) % 3]).unwrap();
                    rows = vec![keep, (keep + 1) % 3];
                }
            }
            for (index, row) in rows.iter().enumerate() {
                let mut own = batch.extract(index).unwrap();
                for count in [1, 4, 1] {
                    let fed = tokens(&mut random, count);
                    let got = forward(&*model, &mut own, &[&fed]);
                    assert_near(&got[0], &forward(&*model, &mut alone[*row], &[&fed])[0], &place);
                }
            }
        }
    }
}

/// A row that was taken out of a batch in which no other changed its bits goes on with its very bits.
#[test]
fn an_extracted_row_continues_as_the_row_that_never_shared_a_batch() {
    for checkpoint in ["glm4_moe_lite-tiny-dense", "glm_moe_dsa-tiny-dense"] {
        let model = load(checkpoint).model;
        let mut random = Random::new(5);
        let prompt = tokens(&mut random, 15);
        let (mut batch, mut alone) = (solo(&*model, &prompt), solo(&*model, &prompt));
        batch.extend(solo(&*model, &tokens(&mut random, 15))).unwrap();
        let mut own = batch.extract(0).unwrap();
        for count in [1, 1, 6, 1] {
            let fed = tokens(&mut random, count);
            let got = forward(&*model, &mut own, &[&fed]);
            assert_eq!(got, forward(&*model, &mut alone, &[&fed]), "{checkpoint}");
        }
    }
}

#[test]
fn tokens_that_were_taken_back_leave_no_trace() {
    for checkpoint in ["glm4_moe_lite-tiny-dense", "glm_moe_dsa-tiny-dense"] {
        let model = load(checkpoint).model;
        let mut random = Random::new(7);
        let prompt = tokens(&mut random, 14);
        let (mut caches, mut plain) = (solo(&*model, &prompt), solo(&*model, &prompt));
        forward(&*model, &mut caches, &[&tokens(&mut random, 3)]);
        assert_eq!(caches.trim(3).unwrap(), 3);
        let fed = tokens(&mut random, 1);
        let got = forward(&*model, &mut caches, &[&fed]);
        assert_eq!(got, forward(&*model, &mut plain, &[&fed]), "{checkpoint}");
    }
}

/// Latents and turned keys, 16 + 4 values a token and layer, and 8 more where an indexer has keys.
#[test]
fn rows_cost_what_is_projected_and_layers_that_share_a_choice_cost_less() {
    let shared = serde_json::json!({ "index_topk_pattern": "FSSFS" });
    for (fields, sharing, token_values) in
        [(Value::Null, &[][..], 5 * 28), (shared, &[1, 2, 4], 2 * 28 + 3 * 20)]
    {
        let unused = variant::indexers(sharing);
        let loaded = variant::load(&fields, variant::without(&unused)).unwrap();
        let profile = loaded.kv_profile(&KvScheme::Plain);
        assert_eq!(profile.row_bytes(1), token_values * 4 * 256);
        let mut caches = loaded.model.new_caches();
        for tokens in [1, 254, 2] {
            forward(&*loaded.model, &mut caches, &[&vec![3; tokens]]);
        }
        assert_eq!(caches.geometry().width(), 257);
        assert_eq!(caches.bytes(), profile.row_bytes(257));
    }
}

#[test]
fn rows_share_batches_and_quantized_kv_is_refused() {
    for checkpoint in CHECKPOINTS {
        let loaded = load(checkpoint);
        assert_eq!(loaded.serial_because, None);
        let packing = Packing::new(4, 32).unwrap();
        let scheme = KvScheme::Uniform { packing, start_tokens: 0 };
        let error = scheme.check(&loaded.model.token_shapes()).unwrap_err();
        assert!(error.message().contains("no layer"), "{error}");
        let scheme = KvScheme::PerLayer(vec![None, Some(packing)]);
        let error = scheme.check(&loaded.model.token_shapes()).unwrap_err();
        assert!(error.message().contains("layer 1"), "{error}");
    }
}
