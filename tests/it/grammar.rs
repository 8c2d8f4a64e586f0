//! Rows with grammars: each answer matches, whoever shares the batch.

use serde_json::Value;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::error::Code;
use slipstream_engine::grammar::{Constraint, Grammars};
use slipstream_engine::scheduler::{Board, FinishReason, RowEvent, RowSpec, Scheduler};
use slipstream_engine::tokenizer::Tokenizer;
use slipstream_tests::client::{Client, serve_all};
use slipstream_tests::grammar::{Case, END, cases, tokenizer};
use slipstream_tests::random::Random;
use slipstream_tests::script::{Script, ScriptedExecutor, SharedJournal, answer, row};

fn scripted(batch_rows_max: usize) -> Scheduler<ScriptedExecutor> {
    let executor = ScriptedExecutor::new(Script::default(), SharedJournal::default());
    let config = SchedulerConfig { batch_rows_max, ..SchedulerConfig::default() };
    Scheduler::new(config, executor, Clock::manual(), Board::new())
}

fn spec(id: usize, case: &Case, prompt: Vec<u32>, max_tokens: usize) -> RowSpec {
    RowSpec {
        grammar: Some(case.grammar.clone()),
        stop_tokens: [END].into(),
        ..row(id.to_string(), prompt, max_tokens)
    }
}

/// What of `said` is the answer of the case at `index`, and no reasoning before it.
fn behind_reasoning(index: usize, said: &str) -> &str {
    let reasons = index >= cases().len() / 2;
    match (reasons, index % 2, said.strip_prefix("<think>")) {
        (false, ..) | (true, 1, None) => said,
        (true, 1, Some(reasoning)) => reasoning.split_once("/>").unwrap().1,
        _ => said.split_once('>').unwrap().1,
    }
}

/// Holds a whole answer against its case.
#[track_caller]
fn check_matches(index: usize, said: &str) {
    let case = &cases()[index];
    let said = behind_reasoning(index, said);
    if let Some(schema) = &case.schema {
        let value: Value =
            serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert!(jsonschema::is_valid(schema, &value), "{said} is not {schema}");
        return;
    }
    match &case.constraint {
        Constraint::JsonObject => {
            let read: Result<serde::de::IgnoredAny, _> = serde_json::from_str(said);
            assert!(read.is_ok() && said.starts_with('{'), "{said}");
        }
        Constraint::Choice(choices) => {
            assert!(choices.iter().any(|choice| choice == said), "{said}");
        }
        Constraint::Regex(_) => {
            let (letters, digits) = said.split_once('-').unwrap_or_else(|| panic!("{said}"));
            assert!(letters.replace("bc", "a").trim_matches('a').is_empty(), "{said}");
            assert!(digits.len() == 2 && digits.parse::<u8>().is_ok(), "{said}");
        }
        Constraint::Grammar(_) => {
            let (before, after) = said.split_once('c').unwrap_or_else(|| panic!("{said}"));
            assert_eq!(before.len(), after.len(), "{said}");
            assert!(
                before.trim_matches('a').is_empty() && after.trim_matches('b').is_empty(),
                "{said}"
            );
        }
        Constraint::JsonSchema { .. } | Constraint::Calls(_) => unreachable!("no case is one"),
    }
}

/// Checks all answers that are whole, and says how many are.
fn check_answers(specs: &[(usize, RowSpec)], clients: &[Client], tokenizer: &Tokenizer) -> usize {
    let mut whole = 0;
    for ((index, spec), client) in specs.iter().zip(clients) {
        let (reason, _) =
            client.finish().unwrap_or_else(|| panic!("{}: {:?}", spec.id, client.end()));
        assert!(
            client.tokens().iter().all(|token| *token < END),
            "a stop token or padding was said"
        );
        if reason == FinishReason::Stop {
            whole += 1;
            check_matches(*index, &tokenizer.decode(client.tokens()).unwrap());
        } else {
            assert_eq!((reason, client.tokens().len()), (FinishReason::Length, spec.max_tokens));
        }
    }
    whole
}

#[test]
fn whatever_is_said_by_chance_under_a_grammar_matches_it() {
    let tokenizer = tokenizer();
    let mut random = Random::new(3);
    let (mut rows, mut whole) = (0, 0);
    for _ in 0..60 {
        let specs: Vec<(usize, RowSpec)> = (0..cases().len())
            .map(|index| {
                let prompt = (0..3).map(|_| random.between(0, 60) as u32).collect();
                (index, spec(index, &cases()[index], prompt, 400))
            })
            .collect();
        let clients = serve_all(&mut scripted(4), specs.iter().map(|(_, spec)| spec.clone()), 2);
        whole += check_answers(&specs, &clients, &tokenizer);
        rows += specs.len();
    }
    assert!(whole > rows * 9 / 10, "{whole} of {rows} answers are whole");
}

/// Plain rows and rows of four schemas, which join and leave at different times.
fn company(random: &mut Random) -> Vec<RowSpec> {
    let mut specs = Vec::new();
    for id in 0..16 {
        let prompt: Vec<u32> =
            (0..random.size(1, 6)).map(|_| random.between(0, 60) as u32).collect();
        let max_tokens = random.size(1, 60);
        specs.push(match id % 5 {
            4 => row(id.to_string(), prompt, max_tokens),
            schema => spec(id, &cases()[schema], prompt, max_tokens),
        });
    }
    specs
}

#[test]
fn rows_of_four_schemas_that_join_and_leave_say_what_each_says_alone() {
    let mut random = Random::new(8);
    for gap in [0, 1, 2, 5] {
        let specs = company(&mut random);
        let clients = serve_all(&mut scripted(4), specs.iter().cloned(), gap);
        for (spec, client) in specs.iter().zip(&clients) {
            let expected = answer(spec);
            assert_eq!(client.tokens(), expected.tokens, "row {}", spec.id);
            let (reason, usage) = client.finish().unwrap();
            assert_eq!(
                (reason, usage.generated_tokens),
                (expected.reason, expected.generated_tokens)
            );
        }
    }
}

#[test]
fn a_row_that_its_client_leaves_in_the_middle_of_its_grammar_disturbs_nobody() {
    let mut scheduler = scripted(4);
    let specs: Vec<RowSpec> =
        (0..4).map(|id| spec(id, &cases()[id], vec![id as u32, 5], 300)).collect();
    let mut clients: Vec<Client> = specs
        .iter()
        .map(|spec| {
            let (client, events) = Client::new(spec.max_tokens);
            scheduler.submit(spec.clone(), events);
            client
        })
        .collect();
    scheduler.tick();
    clients[1].leave();
    while scheduler.live_rows() > 0 {
        scheduler.tick();
    }
    for (spec, client) in specs.iter().zip(&mut clients).filter(|(spec, _)| spec.id != "1") {
        client.listen();
        assert_eq!(client.tokens(), answer(spec).tokens, "row {}", spec.id);
    }
}

#[test]
fn an_answer_cut_by_its_length_ends_with_length_and_one_that_is_whole_there_with_stop() {
    let spec = spec(0, &cases()[0], vec![1, 2], 400);
    let whole = answer(&spec);
    assert_eq!(whole.reason, FinishReason::Stop);
    let length = whole.tokens.len();
    for (max_tokens, reason) in [
        (1, FinishReason::Length),
        (length - 1, FinishReason::Length),
        (length, FinishReason::Stop),
        (length + 1, FinishReason::Stop),
    ] {
        let spec = RowSpec { max_tokens, ..spec.clone() };
        let clients = serve_all(&mut scripted(4), [spec], 0);
        assert_eq!(clients[0].finish().unwrap().0, reason, "{max_tokens}");
        assert_eq!(clients[0].tokens(), &whole.tokens[..max_tokens.min(length)]);
    }
}

#[test]
fn a_row_whose_grammar_grows_too_complex_fails_alone() {
    let grammars = Grammars::new(tokenizer(), 61).with_lexer_states_max(60);
    let greedy = Constraint::Regex("(a|b)*a(a|b){90}".to_owned());
    let greedy = grammars.compile(&greedy).unwrap();
    let mut specs: Vec<RowSpec> =
        (0..4).map(|id| spec(id, &cases()[id], vec![id as u32, 5], 300)).collect();
    specs[1].grammar = Some(greedy);
    specs.push(row("plain".to_owned(), vec![3, 1], 60));
    let clients = serve_all(&mut scripted(5), specs.iter().cloned(), 1);
    for (spec, client) in specs.iter().zip(&clients) {
        if spec.id == "1" {
            let Some(RowEvent::Failed(error)) = client.end() else { panic!("{:?}", client.end()) };
            assert_eq!(error.code(), Code::Unsupported);
            assert!(error.message().contains("too complex"), "{error}");
            assert!(!client.tokens().is_empty() && client.tokens().len() < 300);
        } else {
            assert_eq!(client.tokens(), answer(spec).tokens, "row {}", spec.id);
            assert_eq!(client.finish().unwrap().0, answer(spec).reason);
        }
    }
}

#[test]
fn a_row_of_which_only_the_empty_answer_matches_ends_at_once() {
    let empty = Constraint::Regex("()".to_owned());
    let grammar = Some(Grammars::new(tokenizer(), 61).compile(&empty).unwrap());
    let spec = RowSpec { grammar, ..spec(0, &cases()[0], vec![1, 2], 50) };
    let clients = serve_all(&mut scripted(4), [spec, row("1".to_owned(), vec![4], 9)], 0);
    let (reason, usage) = clients[0].finish().unwrap();
    assert_eq!((reason, usage.generated_tokens), (FinishReason::Stop, 1));
    assert!(clients[0].tokens().is_empty());
    assert_eq!(clients[1].tokens(), answer(&row("1".to_owned(), vec![4], 9)).tokens);
}

/// The same on a model of random weights.
#[cfg(feature = "mlx")]
mod on_mlx {
    use std::cell::RefCell;
    use std::rc::Rc;

    use slipstream_engine::config::Levers;
    use slipstream_engine::mlx::{Array, Device, Dtype, ops};
    use slipstream_engine::model::{self, LoadOptions};
    use slipstream_engine::sampling::SamplingParams;
    use slipstream_engine::scheduler::{Executor, Lane, MlxExecutor};
    use slipstream_tests::goldens;

    use super::*;

    fn executor(levers: Levers) -> MlxExecutor {
        let options =
            LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
        let loaded = model::load(&goldens::checkpoint("llama-tiny"), options).unwrap();
        MlxExecutor::new(loaded.model, loaded.weights_bytes).with_levers(levers)
    }

    fn scheduler<E: Executor>(executor: E, levers: Levers) -> Scheduler<E> {
        let config = SchedulerConfig { batch_rows_max: 4, levers, ..SchedulerConfig::default() };
        Scheduler::new(config, executor, Clock::manual(), Board::new())
    }

    /// Hot rows, every fifth of them plain; the model's head has 288 ids, the tokenizer 61.
    fn specs(random: &mut Random, rows: usize, max_tokens: usize) -> Vec<(usize, RowSpec)> {
        let specs = (0..rows).map(|id| {
            let prompt = (0..random.size(1, 30)).map(|_| random.between(0, 255) as u32).collect();
            let temperature = if id % 7 == 6 { 0.0 } else { 1.5 };
            let sampling = SamplingParams {
                temperature,
                seed: Some(random.bits()),
                ..SamplingParams::default()
            };
            let index = random.size(0, cases().len() - 1);
            let spec = match id % 5 {
                4 => row(id.to_string(), prompt, max_tokens / 4),
                _ => spec(id, &cases()[index], prompt, max_tokens),
            };
            (index, RowSpec { sampling, ..spec })
        });
        specs.collect()
    }

    fn answers(specs: &[(usize, RowSpec)], levers: Levers, gap: usize) -> Vec<Vec<u32>> {
        let rows = specs.iter().map(|(_, spec)| spec.clone());
        let clients = serve_all(&mut scheduler(executor(levers), levers), rows, gap);
        assert!(clients.iter().all(|client| client.finish().is_some()));
        clients.iter().map(|client| client.tokens().to_vec()).collect()
    }

    #[test]
    fn whatever_a_hot_model_says_under_a_grammar_matches_it_and_no_padding_is_ever_said() {
        let tokenizer = tokenizer();
        let mut random = Random::new(21);
        let specs: Vec<_> = specs(&mut random, 120, 250)
            .into_iter()
            .filter(|(_, spec)| spec.grammar.is_some())
            .collect();
        let rows = specs.iter().map(|(_, spec)| spec.clone());
        let clients =
            serve_all(&mut scheduler(executor(Levers::default()), Levers::default()), rows, 1);
        let whole = check_answers(&specs, &clients, &tokenizer);
        assert!(whole > specs.len() / 2, "{whole} of {} answers are whole", specs.len());
    }

    #[test]
    fn rows_say_the_same_alone_together_in_turn_and_with_mechanisms_switched_off() {
        let specs = specs(&mut Random::new(5), 10, 40);
        let serial = |(index, spec): &(usize, RowSpec)| {
            (*index, RowSpec { lane: Lane::Serial, ..spec.clone() })
        };
        let serial: Vec<_> = specs.iter().map(serial).collect();
        let expected = answers(&serial, Levers::default(), 0);
        assert_eq!(answers(&specs, Levers::default(), 0), expected);
        assert_eq!(answers(&specs, Levers::default(), 3), expected);
        for levers in [
            Levers { no_pipeline: true, ..Levers::default() },
            Levers { row_sampling: true, ..Levers::default() },
            Levers { remerge: true, ..Levers::default() },
        ] {
            assert_eq!(answers(&specs, levers, 1), expected);
        }
    }

    #[test]
    fn a_plain_row_beside_grammars_has_the_logits_and_tokens_that_it_has_alone() {
        let mut random = Random::new(13);
        let company = specs(&mut random, 5, 30);
        let plain = company.iter().find(|(_, spec)| spec.grammar.is_none()).unwrap().clone();
        let seen = |specs: Vec<RowSpec>| {
            let mut executor = executor(Levers::default());
            let logits = Rc::new(RefCell::new(Vec::new()));
            let (noted, id) = (Rc::clone(&logits), plain.1.id.clone());
            executor.observe_logits(Box::new(move |ids, logits| {
                let values = ops::read_f32(logits).unwrap();
                let width = values.len() / ids.len();
                if let Some(row) = ids.iter().position(|other| *other == id) {
                    let bits = values[row * width..][..width].iter().map(|value| value.to_bits());
                    noted.borrow_mut().push(bits.collect::<Vec<u32>>());
                }
            }));
            let mut scheduler = scheduler(executor, Levers::default());
            let clients = serve_all(&mut scheduler, specs.iter().cloned(), 0);
            let place = specs.iter().position(|spec| spec.id == plain.1.id).unwrap();
            (clients[place].tokens().to_vec(), logits.take())
        };
        let (alone, alone_logits) = seen(vec![plain.1.clone()]);
        let (beside, beside_logits) = seen(company.iter().map(|(_, spec)| spec.clone()).collect());
        assert_eq!(beside, alone);
        // A step in flight when the row ends is nobody's, and may or may not have been dispatched.
        let steps = alone.len();
        assert!(alone_logits[..steps] == beside_logits[..steps]);
    }

    #[test]
    fn masked_logits_are_minus_infinity_and_all_others_keep_their_bits() {
        Device::cpu();
        let values: Vec<f32> =
            vec![-0.0, 0.0, 1.5, f32::NAN, f32::NEG_INFINITY, -3.0, f32::MIN_POSITIVE / 2.0]
                .into_iter()
                .cycle()
                .take(2 * 67)
                .collect();
        let logits = Array::from_slice(&values, &[2, 67]);
        let mask = [0b1010, 0, 0b1];
        let check = |rows: [Option<&[u32]>; 2]| {
            let kept = ops::read_f32(&ops::keep_bits(&rows, &logits).unwrap()).unwrap();
            for (index, (kept, value)) in kept.iter().zip(&values).enumerate() {
                let (row, id) = (index / 67, index % 67);
                let word = |words: &[u32]| words.get(id / 32).copied().unwrap_or(0);
                let allowed = rows[row].is_none_or(|words| word(words) >> (id % 32) & 1 == 1);
                let expected = if allowed { *value } else { f32::NEG_INFINITY };
                assert_eq!(kept.to_bits(), expected.to_bits(), "row {row}, id {id}");
            }
        };
        check([Some(&mask), None]);
        check([None, Some(&mask[..1])]);
        check([Some(&[u32::MAX; 9]), Some(&[])]);
    }
}
