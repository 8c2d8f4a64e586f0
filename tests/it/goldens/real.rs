//! Real models, whose rows share one batch and answer as mlx-lm answers each alone.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::scheduler::{Board, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::serve_all;
use slipstream_tests::script;

/// A prompt, and what the oracle makes of it.
#[derive(Debug, Deserialize)]
pub(super) struct Answered {
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) stop_tokens: Vec<u32>,
    pub(super) tokens: Vec<u32>,
    pub(super) finish: String,
}

impl Answered {
    fn spec(&self, index: usize) -> RowSpec {
        RowSpec {
            stop_tokens: Arc::from(&*self.stop_tokens),
            ..script::row(index.to_string(), self.prompt.clone(), self.max_tokens)
        }
    }
}

/// All of `answers` in one batch of the model in `directory`, in f32.
pub(super) fn check_together(directory: &Path, answers: &[&Answered]) {
    let back_end = Device::cpu().back_end();
    let options = LoadOptions { dtype: Some(Dtype::Float32), back_end };
    let loaded = model::load(directory, options).unwrap();
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
    let config = SchedulerConfig::default();
    let mut scheduler = Scheduler::new(config, executor, Clock::manual(), Board::new());
    let specs = answers.iter().enumerate().map(|(index, answer)| answer.spec(index));
    let clients = serve_all(&mut scheduler, specs, 0);
    assert_eq!(scheduler.snapshot().totals.peak_rows, answers.len());
    for (index, (answer, client)) in answers.iter().zip(&clients).enumerate() {
        let stopped = usize::from(answer.finish == "stop");
        let tokens = &answer.tokens[..answer.tokens.len() - stopped];
        assert_eq!(client.tokens(), tokens, "row {index}");
    }
}
