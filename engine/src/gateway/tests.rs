//! The facade over scripted rows.

use std::num::NonZeroUsize;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::script::{ScriptedRows, Step, engine, engine_with, says, tokenizer};
use super::*;
use crate::config::SchedulerConfig;
use crate::error::{Code, Error, Result};
use crate::output::AnswerPart;
use crate::scheduler::Lane;

fn request(text: &str, stop: &[&str]) -> GenerateRequest {
    GenerateRequest {
        stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
        ..GenerateRequest::new(format!("request-{text}"), Prompt::Text(text.to_owned()))
    }
}

/// The texts in order, and the end.
async fn run(generation: &mut Generation) -> (Vec<String>, Result<(FinishReason, Usage)>) {
    let mut texts = Vec::new();
    loop {
        match generation.next().await.expect("an end comes before nothing") {
            Ok(AnswerEvent::Part(AnswerPart::Text(text))) => texts.push(text),
            Ok(AnswerEvent::Logprobs(_)) => {}
            Ok(AnswerEvent::Finished { reason, usage }) => return (texts, Ok((reason, usage))),
            Ok(other) => panic!("plain text holds {other:?}"),
            Err(error) => return (texts, Err(error)),
        }
    }
}

fn random_bytes(random: &mut StdRng, tokens_max: usize, ids: &[u32]) -> Vec<u32> {
    let count = random.random_range(0..=tokens_max);
    (0..count).map(|_| ids[random.random_range(0..ids.len())]).collect()
}

#[tokio::test]
async fn any_tokens_become_the_text_that_decoding_them_at_once_gives() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let ids: Vec<u32> = (0..=256).collect();
        let tokens = random_bytes(&mut random, 40, &ids);
        let steps: Vec<_> = tokens.iter().copied().map(Step::Token).collect();
        let rows = ScriptedRows::new(move |_| steps.clone());
        let mut generation = engine(rows).generate(request("p", &[])).await.unwrap();
        let (texts, end) = run(&mut generation).await;
        assert_eq!(texts.concat(), tokenizer().decode(&tokens).unwrap(), "seed {seed}");
        assert!(texts.iter().all(|text| !text.is_empty()), "seed {seed}: {texts:?}");
        let (reason, usage) = end.unwrap();
        assert_eq!((reason, usage.generated_tokens), (FinishReason::Stop, tokens.len() + 1));
        assert!(generation.next().await.is_none(), "seed {seed}");
    }
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it_and_the_count_at_the_token_that_completes_it() {
    let letters = tokenizer().encode("ab", false).unwrap();
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let tokens = random_bytes(&mut random, 24, &letters);
        let stop: String =
            (0..random.random_range(1..5)).map(|_| ['a', 'b'][random.random_range(0..2)]).collect();
        let text = tokenizer().decode(&tokens).unwrap();
        let steps: Vec<_> = tokens.iter().copied().map(Step::Token).collect();
        let rows = ScriptedRows::new(move |_| steps.clone());
        let mut generation = engine(rows).generate(request("p", &[&stop])).await.unwrap();
        let (texts, end) = run(&mut generation).await;
        let (expected, count) = match text.find(&stop) {
            Some(at) => (&text[..at], at + stop.len()),
            None => (&text[..], tokens.len() + 1),
        };
        assert_eq!(texts.concat(), expected, "seed {seed}: {text} until {stop}");
        let (reason, usage) = end.unwrap();
        assert_eq!((reason, usage.generated_tokens), (FinishReason::Stop, count), "seed {seed}");
        assert_eq!(usage.prompt_tokens, 1);
        let known = (usage.cached_tokens, usage.queue_ms, usage.prefill_ms);
        assert_eq!(known, (script::CACHED_TOKENS, script::QUEUE_MS, script::PREFILL_MS));
    }
}

/// What a client that asked for log-probabilities heard: each entry with the length of the text that was
/// told before it, and the whole text.
async fn heard_entries(generation: &mut Generation) -> (Vec<(usize, LogprobEntry)>, String) {
    let (mut entries, mut text) = (Vec::new(), String::new());
    while let Some(event) = generation.next().await {
        match event.unwrap() {
            AnswerEvent::Part(AnswerPart::Text(more)) => text.push_str(&more),
            AnswerEvent::Logprobs(more) => {
                assert!(!more.is_empty());
                entries.extend(more.into_iter().map(|entry| (text.len(), entry)));
            }
            _ => {}
        }
    }
    (entries, text)
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_tokens_whose_text_is_told_and_come_with_it() {
    let letters = tokenizer().encode("abé", false).unwrap();
    let anything: Vec<u32> = (0..=256).collect();
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let ids = if random.random() { &letters } else { &anything };
        let tokens = random_bytes(&mut random, 24, ids);
        let stop = ["ab", "é", "ba", "zz"][random.random_range(0..4)];
        let steps: Vec<_> = tokens.iter().copied().map(Step::Token).collect();
        let rows = ScriptedRows::new(move |_| steps.clone());
        let mut asked = request("p", &[stop]);
        asked.sampling.logprobs = Some(random.random_range(0..3));
        let mut generation = engine(rows.clone()).generate(asked).await.unwrap();
        let (entries, told) = heard_entries(&mut generation).await;

        // Bytes of text that were whole before each token, and all of the text.
        let (mut detokenizer, mut whole) = (tokenizer().detokenizer(), String::new());
        let mut starts = Vec::new();
        for token in &tokens {
            starts.push(whole.len());
            whole.push_str(&detokenizer.push(*token).unwrap());
        }
        whole.push_str(&detokenizer.finish().unwrap());
        let stopped = whole.contains(stop);
        let expected: Vec<usize> =
            (0..tokens.len()).filter(|nth| !stopped || starts[*nth] < told.len()).collect();
        assert_eq!(entries.len(), expected.len(), "seed {seed}: {whole} until {stop}");
        let spec = rows.specs().remove(0);
        for (nth, (told_before, entry)) in expected.into_iter().zip(&entries) {
            let known = script::sampled(&spec, tokens[nth], nth + 1).logprobs.unwrap();
            assert_eq!((entry.token.id, entry.token.logprob), (tokens[nth], known.chosen));
            let top: Vec<_> = entry.top.iter().map(|one| (one.id, one.logprob)).collect();
            assert_eq!(top, known.top, "seed {seed}");
            assert_eq!(entry.text_offset, whole[..starts[nth]].chars().count(), "seed {seed}");
            // Not before text that precedes it, and before its own.
            assert!(*told_before <= starts[nth], "seed {seed}: {told_before} {}", starts[nth]);
        }
        let spelled: Vec<u8> = entries
            .iter()
            .filter(|(_, entry)| !entry.token.text.special)
            .flat_map(|(_, entry)| entry.token.text.bytes.clone())
            .collect();
        if !stopped {
            assert_eq!(String::from_utf8_lossy(&spelled), told, "seed {seed}");
        }
    }
}

#[tokio::test]
async fn nothing_is_told_of_tokens_when_nobody_asks() {
    let mut generation =
        engine(ScriptedRows::new(|_| says("abc"))).generate(request("p", &[])).await.unwrap();
    assert_eq!(heard_entries(&mut generation).await, (Vec::new(), "abc".to_owned()));
}

#[tokio::test]
async fn line_breaks_and_ends_are_what_xtc_never_drops() {
    let engine = engine(ScriptedRows::new(|_| Vec::new()));
    let line_break = tokenizer().encode("\n", false).unwrap();
    let exempt = &engine.card().sampling_defaults.xtc.exempt;
    assert_eq!(**exempt, [line_break[0], script::IM_END]);
}

#[tokio::test]
async fn a_stop_string_cancels_the_row_at_once() {
    let rows = ScriptedRows::new(|_| [says("one END"), vec![Step::Gate]].concat());
    let engine = engine(rows.clone());
    let mut generation = engine.generate(request("p", &["END"])).await.unwrap();
    let (texts, end) = run(&mut generation).await;
    assert_eq!(texts.concat(), "one ");
    assert_eq!(end.unwrap().0, FinishReason::Stop);
    assert_eq!(rows.cancelled(1).await, ["request-p"]);
}

#[tokio::test]
async fn dropping_a_generation_cancels_its_row_and_no_other() {
    let rows = ScriptedRows::new(|_| [says("x"), vec![Step::Gate], says("y")].concat());
    let engine = engine(rows.clone());
    let left = engine.generate(request("left", &[])).await.unwrap();
    let mut stays = engine.generate(request("stays", &[])).await.unwrap();
    drop(left);
    assert_eq!(rows.cancelled(1).await, ["request-left"]);
    rows.open_gate();
    assert_eq!(run(&mut stays).await.0.concat(), "xy");
    assert_eq!(rows.cancelled(1).await.len(), 1);
}

#[tokio::test]
async fn an_answer_as_long_as_allowed_ends_in_length_unless_its_end_is_a_stop_string() {
    let rows = ScriptedRows::new(|_| says("abcdef"));
    let engine = engine(rows);
    for (stop, text, reason) in [
        (vec![], "abcd", FinishReason::Length),
        (vec!["de"], "abcd", FinishReason::Length),
        (vec!["cd"], "ab", FinishReason::Stop),
        (vec!["cd", "cde"], "ab", FinishReason::Stop),
    ] {
        let mut four = request("p", &stop);
        four.max_tokens = NonZeroUsize::new(4);
        let (texts, end) = run(&mut engine.generate(four).await.unwrap()).await;
        let (ended, usage) = end.unwrap();
        assert_eq!((&*texts.concat(), ended, usage.generated_tokens), (text, reason, 4));
    }
}

#[tokio::test]
async fn an_error_of_the_row_follows_the_text_before_it_and_is_the_last_event() {
    let error = Error::new(Code::OverBudget, "the row needs 9 bytes of 8");
    let steps = [says("ab"), vec![Step::Fail(error.clone())]].concat();
    let mut generation = engine(ScriptedRows::new(move |_| steps.clone()))
        .generate(request("p", &[]))
        .await
        .unwrap();
    let (texts, end) = run(&mut generation).await;
    assert_eq!((texts.concat().as_str(), end.unwrap_err()), ("ab", error));
    assert!(generation.next().await.is_none());
}

#[tokio::test]
async fn a_row_that_vanishes_is_an_engine_failure() {
    let rows = ScriptedRows::new(|_| vec![Step::Vanish]);
    let mut generation = engine(rows).generate(request("p", &[])).await.unwrap();
    assert_eq!(run(&mut generation).await.1.unwrap_err().code(), Code::EngineFailed);
}

#[tokio::test]
async fn a_draining_engine_finishes_what_is_live_and_refuses_what_is_new() {
    let rows = ScriptedRows::new(|_| [vec![Step::Gate], says("late")].concat());
    let engine = engine(rows.clone());
    let mut live = engine.generate(request("live", &[])).await.unwrap();
    engine.drain();
    let refused = engine.generate(request("new", &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::ShuttingDown);
    assert!(matches!(engine.health(), Health::Unavailable { .. }));
    rows.open_gate();
    assert_eq!(run(&mut live).await.0.concat(), "late");
}

#[tokio::test]
async fn a_stopped_engine_ends_live_requests_and_cancels_their_rows_even_if_drained_again() {
    let rows = ScriptedRows::new(|_| vec![Step::Gate]);
    let engine = engine(rows.clone());
    let mut live = engine.generate(request("live", &[])).await.unwrap();
    engine.stop();
    engine.drain();
    assert_eq!(run(&mut live).await.1.unwrap_err().code(), Code::ShuttingDown);
    assert_eq!(rows.cancelled(1).await, ["request-live"]);
}

#[tokio::test]
async fn a_request_beyond_all_places_is_refused_until_one_is_free() {
    let scheduler =
        SchedulerConfig { batch_rows_max: 1, waiting_rows_max: 1, ..SchedulerConfig::default() };
    let rows = ScriptedRows::new(|_| vec![Step::Gate]);
    let engine = engine_with(rows.clone(), scheduler);
    let first = engine.generate(request("1", &[])).await.unwrap();
    let _second = engine.generate(request("2", &[])).await.unwrap();
    let third = engine.generate(request("3", &[])).await.unwrap_err();
    assert_eq!(third.code(), Code::QueueFull);
    drop(first);
    assert!(engine.generate(request("4", &[])).await.is_ok());
}

#[tokio::test]
async fn a_bad_request_takes_no_place() {
    let scheduler =
        SchedulerConfig { batch_rows_max: 1, waiting_rows_max: 0, ..SchedulerConfig::default() };
    let engine = engine_with(ScriptedRows::new(|_| says("ok")), scheduler);
    for _ in 0..3 {
        assert!(engine.generate(request("", &[])).await.is_err());
    }
    assert!(engine.generate(request("p", &[])).await.is_ok());
}

#[tokio::test]
async fn the_batch_cap_decides_the_lane_of_the_row() {
    for (batch_rows_max, lane) in [(1, Lane::Serial), (8, Lane::Continuous)] {
        let rows = ScriptedRows::new(|_| Vec::new());
        let scheduler = SchedulerConfig { batch_rows_max, ..SchedulerConfig::default() };
        let generation =
            engine_with(rows.clone(), scheduler).generate(request("p", &[])).await.unwrap();
        assert_eq!((rows.specs()[0].lane, generation.placement().lane), (lane, lane));
    }
}

#[tokio::test]
async fn usage_names_the_lane_and_every_reason_for_it() {
    let cap = vec!["the batch cap is 1".to_owned()];
    for (batch_rows_max, lane, reasons) in
        [(1, Lane::Serial, cap), (8, Lane::Continuous, Vec::new())]
    {
        let rows = ScriptedRows::new(|_| says("x"));
        let scheduler = SchedulerConfig { batch_rows_max, ..SchedulerConfig::default() };
        let engine = engine_with(rows.clone(), scheduler);
        let mut generation = engine.generate(request("p", &[])).await.unwrap();
        let usage = run(&mut generation).await.1.unwrap().1;
        assert_eq!((usage.lane, &usage.lane_reasons), (lane, &reasons));
        assert_eq!(*rows.specs()[0].lane_reasons, reasons);
    }
}

#[tokio::test]
async fn a_request_over_the_budget_is_refused_before_it_is_a_row() {
    let rows = ScriptedRows::new(|_| says("x"));
    let scheduler = SchedulerConfig { kv_budget_bytes: Some(1), ..SchedulerConfig::default() };
    let error = engine_with(rows.clone(), scheduler).generate(request("p", &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::OverBudget);
    assert!(rows.specs().is_empty());
}

#[tokio::test]
async fn a_long_text_has_the_same_tokens_as_its_short_parts() {
    let rows = ScriptedRows::new(|_| Vec::new());
    let mut card = script::card();
    card.context_tokens = 1 << 20;
    let clock = crate::clock::Clock::monotonic();
    let engine = Engine::new(card, tokenizer(), rows.clone(), SchedulerConfig::default(), clock);
    let part = "0123456789abcdef";
    let long = part.repeat(4096);
    drop(engine.generate(request(&long, &[])).await.unwrap());
    drop(engine.generate(request(part, &[])).await.unwrap());
    let specs = rows.specs();
    assert_eq!(specs[0].prompt, specs[1].prompt.repeat(4096));
}

#[tokio::test]
async fn a_chat_goes_through_the_template_to_where_the_assistant_speaks() {
    let rows = ScriptedRows::new(|_| Vec::new());
    let messages = vec![serde_json::json!({"role": "user", "content": "hi"})];
    let chat = GenerateRequest { prompt: Prompt::Chat { messages }, ..request("", &[]) };
    drop(engine(rows.clone()).generate(chat).await.unwrap());
    let text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rows.specs()[0].prompt, tokenizer().encode(text, false).unwrap());
}

#[tokio::test]
async fn a_model_that_writes_blocks_refuses_a_constraint_by_the_name_of_its_field() {
    let mut card = super::script::card();
    card.capabilities.writes_blocks = true;
    let rows = ScriptedRows::new(|_| says("ok"));
    let (scheduler, clock) = (SchedulerConfig::default(), crate::clock::Clock::monotonic());
    let engine = Engine::new(card, tokenizer(), rows, scheduler, clock);
    let (constraint, param) =
        (crate::grammar::Constraint::JsonObject, "response_format".to_owned());
    let structure = Some(Structure { constraint, param });
    let error =
        engine.generate(GenerateRequest { structure, ..request("p", &[]) }).await.unwrap_err();
    assert_eq!((error.code(), error.param()), (Code::Unsupported, Some("response_format")));
    assert!(engine.generate(request("p", &[])).await.is_ok());
}
