//! Rows that come out of a batch and go on from their own caches, in a batch again.

use safetensors::SafeTensors;
use serde::Deserialize;
use slipstream_engine::cache::CacheSet;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Model};

use super::forward;
use super::replay::{self, Tolerance};

#[derive(Deserialize)]
struct Golden {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    then: Vec<u32>,
    tokens: Vec<u32>,
}

/// A batch that is fed known tokens, and whose tokens are ids of the golden's rows.
struct Batch<'model> {
    model: &'model dyn Model,
    caches: Option<CacheSet>,
    rows: Vec<usize>,
}

impl Batch<'_> {
    /// Reads `tokens` into `solo`, the last one alone, and has row `row` join. Returns its logits.
    fn join(&mut self, row: usize, mut solo: CacheSet, tokens: &[u32]) -> Vec<f32> {
        let (last, rest) = tokens.split_last().unwrap();
        if !rest.is_empty() {
            forward(self.model, &mut solo, rest);
        }
        let logits = forward(self.model, &mut solo, &[*last]).remove(0);
        match &mut self.caches {
            None => self.caches = Some(solo),
            Some(caches) => caches.extend(solo).unwrap(),
        }
        self.rows.push(row);
        logits
    }

    /// Feeds each row the next token that `said` has for it, and takes out the rows whose tokens are
    /// used up. `each` sees every row's logits, `ended` the caches of those that end.
    fn run(
        &mut self,
        said: impl Fn(usize) -> Vec<u32>,
        mut each: impl FnMut(usize, &[f32]),
        mut ended: impl FnMut(usize, CacheSet),
    ) {
        for step in 0.. {
            let Some(mut caches) = self.caches.take() else { return };
            let tokens: Vec<u32> = self.rows.iter().map(|row| said(*row)[step]).collect();
            let logits = forward(self.model, &mut caches, &tokens);
            self.rows.iter().zip(&logits).for_each(|(row, logits)| each(*row, logits));
            let goes_on = |row: usize| said(row).len() > step + 1;
            for (place, row) in self.rows.iter().enumerate().filter(|(_, row)| !goes_on(**row)) {
                ended(*row, caches.extract(place).unwrap());
            }
            let keep: Vec<usize> =
                (0..self.rows.len()).filter(|place| goes_on(self.rows[*place])).collect();
            if !keep.is_empty() {
                caches.filter(&keep).unwrap();
                self.caches = Some(caches);
            }
            self.rows = keep.iter().map(|place| self.rows[*place]).collect();
        }
    }
}

fn check(checkpoint: &str) {
    let directory = super::directory().join(checkpoint);
    let golden: Golden = super::read_json(&directory.join("continued.json"));
    let expected = std::fs::read(directory.join("continued.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let back_end = Device::cpu().back_end();
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end };
    let loaded = model::load(&directory, options).unwrap();
    let mut batch = Batch { model: loaded.model.as_ref(), caches: None, rows: Vec::new() };

    let rows = &golden.rows;
    for (index, row) in rows.iter().enumerate() {
        batch.join(index, loaded.model.new_caches(), &row.prompt);
    }
    let mut ends: Vec<Option<CacheSet>> = rows.iter().map(|_| None).collect();
    batch.run(|row| rows[row].answer.clone(), |_, _| (), |row, end| ends[row] = Some(end));

    let mut logits = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        logits.push(vec![batch.join(index, ends[index].take().unwrap(), &row.then)]);
    }
    batch.run(
        |row| rows[row].tokens.clone(),
        |row, seen| logits[row].push(seen.to_vec()),
        |_, _| (),
    );
    for (index, row) in rows.iter().enumerate() {
        let wanted = replay::stored(&expected, &index.to_string());
        assert_eq!(wanted.len(), row.tokens.len());
        for (step, (got, wanted)) in logits[index].iter().zip(&wanted).enumerate() {
            let place = format!("{checkpoint}: row {index}, token {step}");
            replay::compare(got, wanted, Tolerance::Bits, &place);
        }
    }
}

#[test]
fn rows_of_full_layers_go_on_from_extracted_caches_as_in_mlx_lm() {
    check("llama-tiny");
}

#[test]
fn rows_with_recurrent_states_go_on_from_extracted_caches_as_in_mlx_lm() {
    check("qwen3_5-tiny");
}

/// The second turn crosses the columns that indexers choose, and begins past them.
#[test]
fn rows_of_latent_attention_go_on_from_extracted_caches_as_in_mlx_lm() {
    check("glm4_moe_lite-tiny-dense");
    check("glm_moe_dsa-tiny-dense");
}
