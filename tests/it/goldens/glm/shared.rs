//! Layers that attend to what another chose (GLM-5.2), as transformers has them, and the drafts of the
//! prediction layer, as mlx-vlm has them: greedy, in f32, past the columns that are chosen.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::ops;
use slipstream_engine::model::Loaded;
use slipstream_engine::scheduler::{Board, MlxExecutor, Scheduler};
use slipstream_tests::client::serve_all;
use slipstream_tests::script;

use super::variant;

/// torch and our BLAS sum in other orders. The largest difference seen was 1.9e-5, on logits up to 6.
const NEAR: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden<Row> {
    variants: Vec<Variant<Row>>,
}

#[derive(Deserialize)]
struct Variant<Row> {
    name: String,
    #[serde(default)]
    fields: Value,
    #[serde(default)]
    shared_layers: Vec<usize>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Answer {
    prompt: Vec<u32>,
    prompt_logits: Vec<f32>,
    tokens: Vec<u32>,
    /// For each token, the greatest logits.
    greatest: Vec<Vec<(usize, f32)>>,
}

#[derive(Deserialize)]
struct Drafts {
    drafts: Vec<usize>,
    logits: Vec<f32>,
}

fn answers() -> Vec<Variant<Answer>> {
    let path = variant::checkpoint().join("shared.json");
    super::super::read_json::<Golden<Answer>>(&path).variants
}

/// The variant as it is published: layers that share have no indexer.
fn load(variant: &Variant<Answer>) -> Loaded {
    let unused = variant::indexers(&variant.shared_layers);
    variant::load(&variant.fields, variant::without(&unused)).unwrap()
}

#[track_caller]
fn assert_near(got: f32, wanted: f32, place: &str) {
    assert!((got - wanted).abs() <= NEAR, "{place}: {got}, the oracle has {wanted}");
}

#[test]
fn layers_that_share_a_choice_answer_as_transformers_does() {
    for variant in &answers() {
        let model = load(variant).model;
        for row in &variant.rows {
            let mut caches = model.new_caches();
            let mut forward = |tokens: &[u32]| {
                let hidden = model.hidden(&ops::token_matrix(tokens, 1), &mut caches).unwrap();
                variant::last_logits(model.as_ref(), &hidden)
            };
            let place = format!("{}, {} tokens", variant.name, row.prompt.len());
            let mut logits = forward(&row.prompt);
            for (got, wanted) in logits.iter().zip(&row.prompt_logits) {
                assert_near(*got, *wanted, &place);
            }
            for (token, greatest) in row.tokens.iter().zip(&row.greatest) {
                assert_eq!(greatest[0].0, *token as usize);
                for (id, wanted) in greatest {
                    assert_near(logits[*id], *wanted, &place);
                }
                assert_eq!(variant::argmax(&logits), *token as usize, "{place}");
                logits = forward(&[*token]);
            }
        }
    }
}

/// transformers says the same of each row alone and of rows padded on the left.
#[test]
fn rows_of_a_batch_answer_as_transformers_does() {
    for variant in &answers() {
        let loaded = load(variant);
        let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
        let config = SchedulerConfig::default();
        let mut scheduler = Scheduler::new(config, executor, Clock::manual(), Board::new());
        let specs = variant.rows.iter().map(|row| {
            script::row(row.prompt.len().to_string(), row.prompt.clone(), row.tokens.len())
        });
        let clients = serve_all(&mut scheduler, specs, 0);
        assert_eq!(scheduler.snapshot().totals.peak_rows, variant.rows.len());
        for (row, client) in variant.rows.iter().zip(&clients) {
            assert_eq!(client.tokens(), row.tokens, "{}, {}", variant.name, row.prompt.len());
        }
    }
}

#[test]
fn layers_choose_differently_so_that_sharing_is_felt() {
    let last = |variant: &Variant<Answer>| variant.rows.last().unwrap().tokens.clone();
    let mut answers: Vec<_> = answers().iter().map(last).collect();
    let count = answers.len();
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), count, "{answers:?}");
}

#[test]
fn the_prediction_layer_drafts_as_mlx_vlm_does() {
    let path = variant::checkpoint().join("drafts.json");
    let drafts = super::super::read_json::<Golden<Drafts>>(&path).variants;
    let mut drafts: HashMap<_, _> =
        drafts.into_iter().map(|variant| (variant.name, variant.rows)).collect();
    for variant in &answers() {
        let model = load(variant).model;
        let head = model.prediction_head().unwrap();
        for (row, wanted) in variant.rows.iter().zip(drafts.remove(&variant.name).unwrap()) {
            let sequence = [&row.prompt[..], &row.tokens].concat();
            let count = sequence.len() - 1;
            let states = model
                .hidden(&ops::token_matrix(&sequence[..count], 1), &mut model.new_caches())
                .unwrap();
            let next = ops::token_matrix(&sequence[1..], 1);
            // At once, and in the pieces in which a prompt and the steps after it come.
            for pieces in [vec![count], vec![row.prompt.len(), 1, 1, count - row.prompt.len() - 2]]
            {
                let mut caches = head.new_caches();
                let mut start = 0;
                for piece in pieces {
                    let stop = start + piece;
                    let part = |array| {
                        let (start, stop) = (ops::axis_index(start), ops::axis_index(stop));
                        ops::slice_axis(array, 1, start, stop).unwrap()
                    };
                    let drafted = head.hidden(&part(&states), &part(&next), &mut caches).unwrap();
                    let logits = ops::read_f32(&model.logits(&drafted).unwrap()).unwrap();
                    for (offset, logits) in logits.chunks(logits.len() / piece).enumerate() {
                        let at = start + offset;
                        let place = format!("{}, {}: draft {at}", variant.name, row.prompt.len());
                        let (draft, logit) = (wanted.drafts[at], wanted.logits[at]);
                        assert_near(logits[draft], logit, &place);
                        assert_near(logits[variant::argmax(logits)], logit, &place);
                    }
                    start = stop;
                }
                assert_eq!(start, wanted.drafts.len());
            }
        }
    }
    assert!(drafts.is_empty());
}
