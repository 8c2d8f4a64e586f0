//! Rows that are taken out of a running batch and go on alone, or with others, as if nothing had been.

use safetensors::SafeTensors;
use slipstream_engine::cache::CacheSet;
use slipstream_engine::mlx::{Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions, Model};

use super::forward;
use super::replay::{Case, Golden, GoldenRow, Tolerance, compare, stored};

/// The case of three rows with unequal prompts, and each row's logits.
struct Expected {
    model: Box<dyn Model>,
    case: Case,
    logits: Vec<Vec<Vec<f32>>>,
}

impl Expected {
    fn read(checkpoint: &str) -> Self {
        let directory = super::directory().join(checkpoint);
        let golden: Golden = super::read_json(&directory.join("cases.json"));
        let case = golden.cases.into_iter().find(|case| case.name == "static_3").unwrap();
        let bytes = std::fs::read(directory.join("logits.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let logits = (0..case.rows.len()).map(|row| stored(&tensors, &format!("static_3.{row}")));
        let logits = logits.collect();
        let options =
            LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
        Self { model: model::load(&directory, options).unwrap().model, case, logits }
    }

    /// A row's caches once its prompt is in, all but the last token at once.
    fn prefill(&self, row: &GoldenRow) -> CacheSet {
        let mut caches = self.model.new_caches();
        let (last, rest) = row.prompt.split_last().unwrap();
        for tokens in [rest, &[*last]].into_iter().filter(|tokens| !tokens.is_empty()) {
            self.model.hidden(&ops::token_matrix(tokens, 1), &mut caches).unwrap();
        }
        caches
    }

    /// Feeds `rows` their tokens numbered `steps`, and holds what comes of each against the oracle.
    fn feed(&self, caches: &mut CacheSet, rows: &[usize], steps: std::ops::Range<usize>) {
        for step in steps {
            let tokens: Vec<u32> =
                rows.iter().map(|row| self.case.rows[*row].tokens[step]).collect();
            let logits = forward(&*self.model, caches, &tokens);
            for (row, logits) in rows.iter().zip(&logits) {
                let place = format!("row {row} of {rows:?}, token {}", step + 1);
                compare(logits, &self.logits[*row][step + 1], Tolerance::Bits, &place);
            }
        }
    }
}

/// The checkpoints of all families that have the case, in bf16.
fn with_three_rows() -> Vec<String> {
    let has_case = |name: &String| {
        let cases = super::directory().join(name).join("cases.json");
        cases.is_file() && std::fs::read_to_string(cases).unwrap().contains("\"static_3\"")
    };
    super::checkpoints().into_iter().filter(has_case).collect()
}

/// Three rows share a batch for three steps; then each goes on alone, and two of them with each other.
fn check(checkpoint: &str) {
    let expected = Expected::read(checkpoint);
    let mut rows = expected.case.rows.iter().map(|row| expected.prefill(row));
    let mut batch = rows.next().unwrap();
    rows.for_each(|row| batch.extend(row).unwrap());
    expected.feed(&mut batch, &[0, 1, 2], 0..3);
    let last = expected.case.rows[0].tokens.len() - 1;
    for row in 0..3 {
        expected.feed(&mut batch.extract(row).unwrap(), &[row], 3..last);
    }
    let pair = [2, 1].map(|row| batch.extract(row).unwrap());
    expected.feed(&mut CacheSet::merge(pair.into()).unwrap(), &[2, 1], 3..last);
    batch.filter(&[0, 2]).unwrap();
    expected.feed(&mut batch, &[0, 2], 3..last);
}

#[test]
fn rows_taken_out_of_a_batch_go_on_as_if_they_had_never_been_in_it() {
    let checkpoints = with_three_rows();
    assert!(checkpoints.len() >= 20, "{checkpoints:?}");
    for checkpoint in checkpoints {
        check(&checkpoint);
    }
}
