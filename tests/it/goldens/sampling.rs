//! The filters before the draw, against mlx-lm's.

use safetensors::SafeTensors;
use serde::Deserialize;
use slipstream_engine::mlx::{Array, Device, ops};
use slipstream_engine::sampling::{SamplingParams, filter};

#[derive(Deserialize)]
struct Golden {
    vocab: usize,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    vector: usize,
    top_p: f32,
    min_p: f32,
    top_k: u32,
}

#[test]
fn top_p_min_p_and_top_k_keep_what_mlx_lm_keeps() {
    Device::cpu();
    let golden: Golden = super::read_json(&super::directory().join("sampling.json"));
    let stored = std::fs::read(super::directory().join("sampling.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&stored).unwrap();
    let inputs = rows(&stored, "logprobs", golden.vocab);
    let expected = rows(&stored, "filtered", golden.vocab);
    assert_eq!(golden.cases.len(), expected.len());
    for (case, expected) in golden.cases.iter().zip(&expected) {
        let input = &inputs[case.vector];
        let input = Array::from_slice(input, &[1, ops::axis_index(golden.vocab)]);
        let params = SamplingParams {
            temperature: 1.0,
            top_p: case.top_p,
            min_p: case.min_p,
            top_k: case.top_k,
            seed: None,
        };
        let kept = ops::read_f32(&filter(&input, &params).unwrap()).unwrap();
        assert_eq!(&kept, expected, "{case:?}");
    }
}

fn rows(stored: &SafeTensors<'_>, name: &str, width: usize) -> Vec<Vec<f32>> {
    let data = stored.tensor(name).unwrap().data().to_vec();
    let values: Vec<f32> =
        data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    values.chunks(width).map(<[f32]>::to_vec).collect()
}
