//! A real model: what mlx-lm answers on the directory that our importer wrote.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::scheduler::{Board, MlxExecutor, RowSpec, Scheduler};
use slipstream_engine::tokenizer::{ChatOptions, Tokenizer};
use slipstream_tests::client::serve_all;
use slipstream_tests::demo;
use slipstream_tests::script;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Value>,
    rendered: String,
    prompt: Vec<u32>,
    max_tokens: usize,
    stop_tokens: Vec<u32>,
    tokens: Vec<u32>,
    finish: String,
    text: String,
}

fn golden() -> Golden {
    super::read_json(&super::directory().join("smollm2/cases.json"))
}

#[test]
fn the_chat_template_and_the_tokenizer_give_the_oracles_prompts() {
    let tokenizer = Tokenizer::load(&demo::model_directory()).unwrap();
    let template = tokenizer.chat_template().unwrap();
    let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
    for case in golden().cases {
        let rendered = template.render(&case.messages, &options).unwrap();
        assert_eq!(rendered, case.rendered);
        assert_eq!(tokenizer.encode(&rendered, false).unwrap(), case.prompt);
        assert_eq!(tokenizer.decode(&case.tokens).unwrap(), case.text);
        assert_eq!(*tokenizer.stop_tokens(), case.stop_tokens);
    }
}

#[test]
fn smollm2_answers_all_chats_together_as_mlx_lm_answers_each_alone() {
    let directory = demo::model_directory();
    let back_end = Device::cpu().back_end();
    let options = LoadOptions { dtype: Some(Dtype::Float32), back_end };
    let loaded = model::load(&directory, options).unwrap();
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
    let config = SchedulerConfig::default();
    let mut scheduler = Scheduler::new(config, executor, Clock::manual(), Board::new());
    let cases = golden().cases;
    let specs = cases.iter().enumerate().map(|(index, case)| spec(index, case));
    let clients = serve_all(&mut scheduler, specs, 0);
    assert_eq!(scheduler.snapshot().totals.peak_rows, cases.len());
    for (case, client) in cases.iter().zip(&clients) {
        let stopped = usize::from(case.finish == "stop");
        assert_eq!(client.tokens(), &case.tokens[..case.tokens.len() - stopped], "{}", case.text);
    }
}

fn spec(index: usize, case: &Case) -> RowSpec {
    RowSpec {
        stop_tokens: Arc::from(case.stop_tokens.clone()),
        ..script::row(index.to_string(), case.prompt.clone(), case.max_tokens)
    }
}
