//! A real model: what mlx-lm answers on the directory that our importer wrote.

use serde::Deserialize;
use serde_json::Value;
use slipstream_engine::tokenizer::{ChatOptions, Tokenizer};
use slipstream_tests::demo;

use super::real::{Answered, check_together};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Value>,
    rendered: String,
    text: String,
    #[serde(flatten)]
    answered: Answered,
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
        assert_eq!(tokenizer.encode(&rendered, false).unwrap(), case.answered.prompt);
        assert_eq!(tokenizer.decode(&case.answered.tokens).unwrap(), case.text);
        assert_eq!(*tokenizer.stop_tokens(), case.answered.stop_tokens);
    }
}

#[test]
fn smollm2_answers_all_chats_together_as_mlx_lm_answers_each_alone() {
    let cases = golden().cases;
    let answers: Vec<_> = cases.iter().map(|case| &case.answered).collect();
    check_together(&demo::model_directory(), &answers);
}
