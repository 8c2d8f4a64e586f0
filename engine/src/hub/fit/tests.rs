use serde_json::{Value, json};

use super::*;
use crate::model::ModelConfig;
use crate::model::outline::Weighed;

const GIB: u64 = 1 << 30;

fn outline(changes: &Value) -> Outline {
    let mut fields = json!({
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 128_256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
        "max_position_embeddings": 131_072,
    });
    fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    Outline::of_config(&ModelConfig::from_fields(fields.as_object().unwrap().clone())).unwrap()
}

/// A dense model of `values` numbers in bf16.
fn dense(values: u64) -> WeightTally {
    WeightTally {
        all: Weighed { fixed_bytes: 0, float_values: values },
        float_type: Some(FloatType::Bf16),
        ..WeightTally::default()
    }
}

fn machine(processing: Processing, memory_gib: u64) -> Machine {
    Machine {
        name: "a machine".to_owned(),
        processing,
        memory_bytes: memory_gib * GIB,
        available_bytes: None,
        bandwidth: Some(Bandwidth { bytes_per_second: 100e9, measured: false }),
    }
}

fn told(weights: &WeightTally, machine: &Machine, wish: &Wish) -> Fit {
    fit(Subject { outline: &outline(&json!({})), weights }, machine, wish)
}

#[test]
fn what_fits_grows_with_memory_and_shrinks_with_rows() {
    let weights = dense(1_235_000_000);
    let mut before: Option<Fit> = None;
    for memory_gib in [1, 2, 4, 6, 8, 16, 64] {
        let fit = told(&weights, &machine(Processing::Gpu, memory_gib), &Wish::default());
        let tokens: Vec<_> = fit.rows.iter().map(|rows| rows.context_tokens).collect();
        assert!(tokens.is_sorted_by(|more, fewer| more >= fewer), "{tokens:?}");
        if let Some(before) = before {
            for (now, then) in fit.rows.iter().zip(&before.rows) {
                assert!(now.context_tokens >= then.context_tokens);
            }
        }
        before = Some(fit);
    }
    assert_eq!(before.unwrap().rows[0].context_tokens, 131_072);
}

#[test]
fn the_context_that_is_told_is_the_longest_that_the_budget_takes() {
    let weights = dense(1_235_000_000);
    let (subject, wish) = (outline(&json!({})), Wish::default());
    for memory_gib in [5, 6, 7, 9] {
        let fit = told(&weights, &machine(Processing::Gpu, memory_gib), &wish);
        let profile = subject.kv_profile(&wish.scheme, 2);
        for RowsFit { rows, context_tokens, .. } in fit.rows {
            let bytes = |tokens| profile.batch_bytes(rows, tokens);
            assert!(context_tokens == 0 || bytes(context_tokens) <= fit.kv_budget_bytes);
            let all = context_tokens == subject.context_tokens;
            assert!(all || bytes(context_tokens + 1) > fit.kv_budget_bytes);
        }
    }
}

#[test]
fn a_verdict_is_no_tight_or_fits_by_what_the_server_would_do() {
    let weights = dense(1_235_000_000);
    let verdict = |memory_gib: u64, free_gib: Option<u64>| {
        let machine = Machine {
            available_bytes: free_gib.map(|gib| gib * GIB),
            ..machine(Processing::Gpu, memory_gib)
        };
        told(&weights, &machine, &Wish::default()).verdict
    };
    // 2.5 GB of weights and 1 GiB of headroom in three quarters of the memory.
    assert_eq!(verdict(4, None), Verdict::No);
    assert_eq!(verdict(5, None), Verdict::Fits);
    assert_eq!(verdict(16, Some(1)), Verdict::Tight, "other programs have it");
    let long = dense(1_250_000_000 + 55_000_000);
    let barely = Machine { memory_bytes: 5_000_000_000, ..machine(Processing::Gpu, 5) };
    assert_eq!(told(&long, &barely, &Wish::default()).verdict, Verdict::Tight);
}

#[test]
fn packed_caches_take_less_and_processors_compute_in_f32() {
    let weights = dense(1_235_000_000);
    let packing = crate::cache::Packing::new(4, 64).unwrap();
    let packed = Wish { scheme: KvScheme::Uniform { packing, start_tokens: 0 }, ..Wish::default() };
    let gpu = machine(Processing::Gpu, 8);
    let plain = told(&weights, &gpu, &Wish::default());
    assert!(told(&weights, &gpu, &packed).token_bytes < plain.token_bytes / 3);
    assert_eq!(plain.token_bytes, 16 * 8 * 2 * 64 * 2);
    let cpu = told(&weights, &machine(Processing::Processor, 8), &Wish::default());
    assert_eq!((plain.float_type, cpu.float_type), (FloatType::Bf16, FloatType::F32));
    assert_eq!(cpu.weights_bytes, 2 * plain.weights_bytes);
}

#[test]
fn speed_is_bandwidth_over_what_a_step_reads() {
    let weights = dense(1_000_000_000);
    let fit = told(&weights, &machine(Processing::Gpu, 64), &Wish::default());
    let row = outline(&json!({})).kv_profile(&KvScheme::Plain, 2).row_bytes(USUAL_TOKENS) as f64;
    for rows in &fit.rows {
        let count = rows.rows as f64;
        let expected = count * 100e9 / (2e9 + count * row);
        let speed = rows.decode_tokens_per_second.unwrap();
        assert!((speed / expected - 1.0).abs() < 1e-9, "{speed} {expected}");
    }
    let unknown = Machine { bandwidth: None, ..machine(Processing::Gpu, 64) };
    assert_eq!(told(&weights, &unknown, &Wish::default()).rows[0].decode_tokens_per_second, None);
}

#[test]
fn a_step_reads_the_experts_that_its_rows_choose_and_no_table() {
    let weights = WeightTally {
        all: Weighed { fixed_bytes: 0, float_values: 1_000_000_000 },
        gathered: Weighed { fixed_bytes: 0, float_values: 100_000_000 },
        experts: Weighed { fixed_bytes: 0, float_values: 800_000_000 },
        float_type: Some(FloatType::Bf16),
        ..WeightTally::default()
    };
    let mixture = outline(&json!({ "num_experts": 16, "num_experts_per_tok": 4 }));
    let machine = machine(Processing::Gpu, 64);
    let wish = Wish::default();
    let reckoning =
        Reckoning::new(Subject { outline: &mixture, weights: &weights }, &machine, &wish);
    for (rows, millions) in [(1, 100 + 200), (2, 100 + 400), (4, 900), (8, 900)] {
        assert_eq!(reckoning.step_weights_bytes(rows), f64::from(millions) * 2e6);
    }
}

#[test]
fn packed_matrices_on_processors_are_not_bound_by_memory_so_nothing_is_promised() {
    let packed = outline(&json!({ "quantization": { "bits": 4, "group_size": 64 } }));
    let weights = dense(1_000_000);
    let subject = Subject { outline: &packed, weights: &weights };
    let speed = |processing| {
        let fit = fit(subject, &machine(processing, 64), &Wish::default());
        fit.rows[0].decode_tokens_per_second
    };
    assert!(speed(Processing::Gpu).is_some());
    assert_eq!(speed(Processing::Processor), None);
}

#[test]
fn what_the_hub_tells_of_types_is_enough_for_a_verdict() {
    let packed = outline(&json!({ "quantization": { "bits": 4, "group_size": 64 } }));
    let counts = [("U32", 125_000_000), ("BF16", 31_250_000)];
    let tally = WeightTally::of_counts(&packed, counts.into_iter());
    assert_eq!(tally.all, Weighed { fixed_bytes: 500_000_000, float_values: 31_250_000 });
    assert_eq!(tally.parameters, 1_000_000_000);
    let plain = outline(&json!({}));
    let tally = WeightTally::of_counts(&plain, [("BF16", 1_000)].into_iter());
    assert_eq!((tally.parameters, tally.float_type), (1_000, Some(FloatType::Bf16)));
    assert_eq!(WeightTally::of_bytes(&plain, 2_000).all.bytes(4), 4_000);
    assert_eq!(WeightTally::of_bytes(&packed, 2_000).all.bytes(4), 2_000);
}

#[test]
fn numbers_that_no_machine_has_do_not_overflow() {
    let weights = WeightTally {
        all: Weighed { fixed_bytes: u64::MAX, float_values: u64::MAX },
        experts: Weighed { fixed_bytes: u64::MAX, float_values: u64::MAX },
        largest_values: u64::MAX,
        float_type: Some(FloatType::F32),
        ..WeightTally::default()
    };
    let machine = Machine { memory_bytes: u64::MAX, ..machine(Processing::Processor, 1) };
    let fit = told(&weights, &machine, &Wish::default());
    assert_eq!(fit.verdict, Verdict::No);
    assert_eq!(fit.rows[3].context_tokens, 0);
}
