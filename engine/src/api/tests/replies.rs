//! Whole and streamed answers.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::api::tests::client::Answer;
use crate::error::{Code, Error};
use crate::gateway::script::{Step, says};
use crate::sampling::{PENALTY_CONTEXT_TOKENS_DEFAULT, Penalty, SamplingParams, Xtc};

/// What a client gets of an answer, however it is told.
#[derive(Debug, PartialEq)]
struct Told {
    text: String,
    /// Null when nothing is told of the tokens.
    logprobs: Value,
    finish_reason: Value,
    usage: Value,
    timings: Value,
}

/// The lists of `more`, which is null or has the names of `all`, at the end of those of `all`.
fn append_logprobs(all: &mut Value, more: &Value) {
    for (name, list) in more.as_object().into_iter().flatten() {
        match list.as_array() {
            Some(list) if list.is_empty() => {}
            Some(list) => {
                let known = all.as_object_mut().unwrap().entry(name).or_insert(json!([]));
                known.as_array_mut().unwrap().extend(list.iter().cloned());
            }
            None => assert_eq!((name.as_str(), list), ("refusal", &Value::Null)),
        }
    }
}

/// What the timings say apart from times that were taken here.
fn settled(timings: &Value) -> Value {
    let mut timings = timings.clone();
    for (name, value) in timings.as_object_mut().into_iter().flatten() {
        if ["first_token_ms", "decode_ms", "decode_tokens_per_second"].contains(&name.as_str()) {
            assert!(value.as_f64().is_some_and(|time| time >= 0.0), "{name}: {value}");
            *value = Value::Null;
        }
    }
    timings
}

fn told_whole(answer: &Answer) -> Told {
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    let choice = &body["choices"][0];
    let text = choice.pointer("/message/content").or_else(|| choice.get("text")).unwrap();
    let mut logprobs = json!({});
    append_logprobs(&mut logprobs, &choice["logprobs"]);
    Told {
        text: text.as_str().unwrap().to_owned(),
        logprobs,
        finish_reason: choice["finish_reason"].clone(),
        usage: body["usage"].clone(),
        timings: settled(&body["timings"]),
    }
}

/// Checks the order of a stream's frames, and folds them.
fn told_in_frames(answer: &Answer, is_chat: bool) -> Told {
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut frames = answer.frames();
    assert_eq!(frames.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> =
        frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let first = &chunks[0];
    assert!(chunks.iter().all(|chunk| chunk["id"] == first["id"]), "{chunks:?}");
    let (usage, choices): (Vec<_>, Vec<_>) =
        chunks.iter().partition(|chunk| chunk["choices"].as_array().unwrap().is_empty());
    let with_role = |chunk: &&&Value| !chunk["choices"][0]["delta"]["role"].is_null();
    assert_eq!(choices.iter().filter(with_role).count(), usize::from(is_chat));
    assert_eq!(choices.iter().take(1).filter(with_role).count(), usize::from(is_chat));
    let (last, before) = choices.split_last().unwrap();
    assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    let text = choices.iter().filter_map(|chunk| {
        let choice = &chunk["choices"][0];
        choice.pointer("/delta/content").or_else(|| choice.get("text"))?.as_str()
    });
    assert!(usage.len() <= 1, "{usage:?}");
    let mut logprobs = json!({});
    for chunk in &choices {
        append_logprobs(&mut logprobs, &chunk["choices"][0]["logprobs"]);
    }
    Told {
        text: text.collect(),
        logprobs,
        finish_reason: last["choices"][0]["finish_reason"].clone(),
        usage: usage.first().map_or(Value::Null, |chunk| chunk["usage"].clone()),
        timings: usage.first().map_or(Value::Null, |chunk| settled(&chunk["timings"])),
    }
}

#[tokio::test]
async fn a_stream_tells_what_the_whole_answer_tells() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        // Mostly letters, so that stop strings occur; sometimes any byte, so that text is not clean.
        let ids: Vec<u32> = if random.random() { (64..68).collect() } else { (0..=256).collect() };
        let count = random.random_range(0..30);
        let steps: Vec<Step> =
            (0..count).map(|_| Step::Token(ids[random.random_range(0..ids.len())])).collect();
        let mut fields = json!({
            "max_tokens": random.random_range(1..40),
            "stop": if random.random() { json!(["ab", "cda"]) } else { Value::Null },
            "logprobs": random.random_bool(0.7),
        });
        if fields["logprobs"] == true {
            fields["top_logprobs"] = json!(random.random_range(-1..3));
        }
        let streaming = merged(
            fields.clone(),
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        );
        let server = Server::start(ScriptedRows::new(move |_| steps.clone())).await;
        for (path, is_chat) in [(CHAT, true), (COMPLETIONS, false)] {
            let body = |fields| {
                if is_chat { chat("hi", fields) } else { completion("hi", fields) }
            };
            let whole = server.client.post(path, &body(fields.clone())).await;
            let streamed = server.client.post(path, &body(streaming.clone())).await;
            let told = told_whole(&whole);
            assert_eq!(told_in_frames(&streamed, is_chat), told, "seed {seed}, {fields}");
            let of_whole = &whole.json()["choices"][0]["logprobs"];
            assert_eq!(of_whole.is_null(), fields["logprobs"] == false, "seed {seed}, {fields}");
            if fields["logprobs"] == true && !told.text.is_empty() {
                assert!(!told.logprobs.as_object().unwrap().is_empty(), "seed {seed}: {told:?}");
            }
        }
    }
}

#[tokio::test]
async fn log_probabilities_have_the_shape_of_their_api() {
    let server = Server::start(ScriptedRows::new(|_| says("a\u{e9}b STOP"))).await;
    let stop = json!({"stop": "bb", "max_tokens": 4});
    let asked = |fields| merged(stop.clone(), fields);
    let whole = server
        .client
        .post(CHAT, &chat("hi", asked(json!({"logprobs": true, "top_logprobs": 2}))))
        .await;
    let content = &whole.json()["choices"][0]["logprobs"]["content"];
    let bytes: Vec<u64> = content
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap())
        .collect();
    assert_eq!(bytes, [97, 195, 169, 98]);
    assert_eq!((&content[0]["token"], &content[1]["token"]), (&json!("a"), &json!("\\xc3")));
    assert_eq!((&content[0]["logprob"], &content[3]["logprob"]), (&json!(-0.5), &json!(-2.0)));
    assert_eq!(content[2]["top_logprobs"].as_array().unwrap().len(), 2);

    let one =
        server.client.post(COMPLETIONS, &completion("hi", asked(json!({"logprobs": 1})))).await;
    let one = &one.json()["choices"][0]["logprobs"];
    assert_eq!(one["tokens"], json!(["a", "bytes:\\xc3", "bytes:\\xa9", "b"]));
    assert_eq!(one["token_logprobs"], json!([-0.5, -1.0, -1.5, -2.0]));
    assert_eq!(one["text_offset"], json!([0, 1, 1, 2]));
    assert_eq!(one["top_logprobs"][3], json!({"b": -2.0}));

    // The chosen ones alone, in each way to say so; and nothing, in each way.
    for (path, fields, told) in [
        (CHAT, json!({"logprobs": true}), true),
        (CHAT, json!({"logprobs": true, "top_logprobs": 0}), true),
        (CHAT, json!({"top_logprobs": 1}), true),
        (COMPLETIONS, json!({"logprobs": 0}), true),
        (COMPLETIONS, json!({"logprobs": true}), true),
        (CHAT, json!({"logprobs": false, "top_logprobs": -1}), false),
        (CHAT, json!({"top_logprobs": 0}), false),
        (COMPLETIONS, json!({"logprobs": null}), false),
        (COMPLETIONS, json!({"logprobs": false}), false),
    ] {
        let body = merged(chat("hi", json!({"prompt": "hi"})), fields);
        let answer = server.client.post(path, &body).await.json();
        assert_eq!(answer["choices"][0]["logprobs"].is_object(), told, "{body}");
    }
}

#[tokio::test]
async fn a_chat_answer_has_every_field_clients_read() {
    let server = Server::start(ScriptedRows::new(|_| says("hello"))).await;
    let answer = server.client.post(CHAT, &chat("hi", json!({"model": "lab/bytes"}))).await;
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"), "{body}");
    assert_eq!(body["id"], server.rows.specs()[0].id);
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("lab/bytes")));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = json!({
        "index": 0, "message": {"role": "assistant", "content": "hello", "refusal": null},
        "logprobs": null, "finish_reason": "stop",
    });
    assert_eq!(body["choices"], json!([choice]));
    let prompt_tokens = server.rows.specs()[0].prompt.len();
    let usage = json!({
        "prompt_tokens": prompt_tokens, "completion_tokens": 6, "total_tokens": prompt_tokens + 6,
        "prompt_tokens_details": {"cached_tokens": script::CACHED_TOKENS},
        "completion_tokens_details": {"reasoning_tokens": 0},
    });
    assert_eq!(body["usage"], usage);
    assert!(body["timings"]["first_token_ms"].as_f64().unwrap() > 0.0, "{body}");
}

#[tokio::test]
async fn who_chose_a_service_tier_hears_of_the_only_one_and_nobody_else_does() {
    let server = Server::start(ScriptedRows::new(|_| says("hi"))).await;
    for stream in [false, true] {
        for (tier, told) in [(json!("auto"), json!("default")), (Value::Null, Value::Null)] {
            let body = chat("hi", json!({"service_tier": tier, "stream": stream}));
            let answer = server.client.post(CHAT, &body).await;
            let bodies = if stream { answer.frames() } else { vec![answer.body] };
            let bodies = bodies.iter().filter(|body| *body != "[DONE]");
            for body in bodies.map(|body| serde_json::from_str::<Value>(body).unwrap()) {
                assert_eq!(body["service_tier"], told, "{body}");
            }
        }
    }
}

#[tokio::test]
async fn a_chat_stream_has_the_frames_clients_expect() {
    let server = Server::start(ScriptedRows::new(|_| says("ab"))).await;
    let answer = server.client.post(CHAT, &chat("hi", json!({"stream": true}))).await;
    let frames = answer.frames();
    let choices: Vec<Value> = frames[..4]
        .iter()
        .map(|frame| serde_json::from_str::<Value>(frame).unwrap())
        .inspect(|chunk| {
            assert_eq!(chunk["object"], "chat.completion.chunk");
            assert!(chunk.get("usage").is_none(), "usage was not asked for: {chunk}");
        })
        .map(|chunk| chunk["choices"][0].clone())
        .collect();
    let choice = |delta: Value, reason: Value| json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason});
    assert_eq!(
        choices,
        [
            choice(json!({"role": "assistant", "content": ""}), Value::Null),
            choice(json!({"content": "a"}), Value::Null),
            choice(json!({"content": "b"}), Value::Null),
            choice(json!({}), json!("stop")),
        ]
    );
    assert_eq!(&frames[4..], ["[DONE]"]);
}

#[tokio::test]
async fn timings_tell_lane_queue_and_prefill_however_the_answer_ends() {
    for batch_rows_max in [8, 1] {
        let scheduler = SchedulerConfig { batch_rows_max, ..SchedulerConfig::default() };
        let rows = ScriptedRows::new(|_| says("one</s>two"));
        let server = Server::start_scheduling(rows, ServeConfig::default(), scheduler).await;
        let (lane, reasons) = match batch_rows_max {
            1 => ("serial", json!(["the batch cap is 1"])),
            _ => ("continuous", json!([])),
        };
        let expected = json!({
            "lane": lane, "lane_reasons": reasons, "cached_tokens": script::CACHED_TOKENS,
            "queue_ms": script::QUEUE_MS, "prefill_ms": script::PREFILL_MS,
            "first_token_ms": null, "decode_ms": null, "decode_tokens_per_second": null,
        });
        for (fields, reason) in [
            (json!({}), "stop"),
            (json!({"stop": "</s>"}), "stop"),
            (json!({"max_tokens": 2}), "length"),
        ] {
            let answer = server.client.post(CHAT, &chat("hi", fields)).await;
            let told = told_whole(&answer);
            assert_eq!((&told.timings, &told.finish_reason), (&expected, &json!(reason)));
            let details = &told.usage["prompt_tokens_details"];
            assert_eq!(details["cached_tokens"], script::CACHED_TOKENS);
        }
    }
}

#[tokio::test]
async fn a_stop_string_across_tokens_is_in_neither_kind_of_answer() {
    let server = Server::start(ScriptedRows::new(|_| says("one</s>two"))).await;
    for stop in [json!("</s>"), json!(["zzz", "</s>"])] {
        let whole = server.client.post(CHAT, &chat("hi", json!({"stop": stop}))).await;
        let streamed =
            server.client.post(CHAT, &chat("hi", json!({"stop": stop, "stream": true}))).await;
        assert_eq!(told_whole(&whole).text, "one");
        assert_eq!(told_in_frames(&streamed, true).text, "one");
        assert_eq!(told_whole(&whole).finish_reason, "stop");
        assert_eq!(told_whole(&whole).usage["completion_tokens"], 7);
    }
}

#[tokio::test]
async fn an_error_amid_a_stream_is_a_frame_and_then_the_end() {
    let failure = Error::new(Code::EngineFailed, "the device is gone");
    let steps = [says("ab"), vec![Step::Fail(failure)]].concat();
    let server = Server::start(ScriptedRows::new(move |_| steps.clone())).await;
    for path in [CHAT, COMPLETIONS] {
        let body = merged(chat("hi", json!({"prompt": "hi"})), json!({"stream": true}));
        let frames = server.client.post(path, &body).await.frames();
        let (done, frames) = frames.split_last().unwrap();
        let (error, before) = frames.split_last().unwrap();
        assert_eq!(done, "[DONE]");
        let error: Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["error"]["message"], "the device is gone");
        assert_eq!(error["error"]["code"], "engine_failed");
        assert!(before.iter().all(|frame| !frame.contains("[DONE]") && !frame.contains("error")));
        assert!(before.iter().all(|frame| !frame.contains("\"stop\"")), "{before:?}");
    }
}

#[tokio::test]
async fn an_error_of_a_row_is_the_status_of_a_whole_answer() {
    for (code, status) in [
        (Code::OverBudget, [400, 400]),
        (Code::QueueFull, [429, 429]),
        // Anthropic's own number for a server that is overloaded.
        (Code::EngineFailed, [503, 529]),
        (Code::Internal, [500, 500]),
    ] {
        let failure = Error::new(code, "no");
        let steps = [says("ab"), vec![Step::Fail(failure)]].concat();
        let server = Server::start(ScriptedRows::new(move |_| steps.clone())).await;
        let body = chat("hi", json!({"model": "default", "max_tokens": 9}));
        for (path, status) in [CHAT, MESSAGES].into_iter().zip(status) {
            let answer = server.client.post(path, &body).await;
            assert_eq!((answer.status, &answer.json()["error"]["message"]), (status, &json!("no")));
            assert_eq!(answer.header("retry-after").is_some(), [429, 503, 529].contains(&status));
        }
    }
}

#[tokio::test]
async fn every_parameter_reaches_the_row() {
    let server = Server::start(ScriptedRows::new(|_| says("x"))).await;
    let fields = json!({
        "temperature": 0.5, "top_p": 0.25, "min_p": 0.125, "top_k": 7, "seed": -1,
        "xtc_probability": 1, "xtc_threshold": 0.75, "repetition_penalty": 1.5,
        "repetition_context_size": 0, "presence_penalty": -2, "presence_context_size": 9,
        "frequency_penalty": 2, "logit_bias": {"12": 1, "3": -100}, "top_logprobs": 20,
        "max_tokens": 9, "max_completion_tokens": 11, "stop": null, "n": 1, "user": "someone",
        "metadata": {"run": "7"}, "num_draft_tokens": 3, "draft_model": "default_model",
        "adapters": null, "tools": [], "response_format": {"type": "text"}, "logprobs": true,
        "tool_choice": "auto", "nobody_knows_this": {"deep": [1]}, "model": "default_model",
    });
    for (path, body) in
        [(CHAT, chat("hi", fields.clone())), (COMPLETIONS, completion("hi", fields))]
    {
        let answer = server.client.post(path, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let spec = server.rows.specs().pop().unwrap();
        let exempt = spec.sampling.xtc.exempt.clone();
        let sampling = SamplingParams {
            temperature: 0.5,
            top_p: 0.25,
            min_p: 0.125,
            top_k: 7,
            seed: Some(u64::MAX),
            xtc: Xtc { probability: 1.0, threshold: 0.75, exempt },
            logit_bias: [(3, -100.0), (12, 1.0)].into(),
            repetition: Penalty { amount: 1.5, context_tokens: 0 },
            presence: Penalty { amount: -2.0, context_tokens: 9 },
            frequency: Penalty { amount: 2.0, context_tokens: PENALTY_CONTEXT_TOKENS_DEFAULT },
            logprobs: Some(20),
        };
        assert_eq!((&spec.sampling, spec.max_tokens), (&sampling, 11));
    }
}

#[tokio::test]
async fn messages_reach_the_template_as_plain_text() {
    let server = Server::start(ScriptedRows::new(|_| says("x"))).await;
    let messages = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": null, "refusal": "no"},
        {"role": "user", "content": "d"},
    ]);
    let answer = server.client.post(CHAT, &json!({"model": "default", "messages": messages})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let expected = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nab<|im_end|>\n\
        <|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nc<|im_end|>\n\
        <|im_start|>assistant\nno<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n";
    let expected = script::tokenizer().encode(expected, false).unwrap();
    assert_eq!(server.rows.specs()[0].prompt, expected);
}

#[tokio::test]
async fn a_completion_takes_text_or_tokens_alone_or_in_an_array_of_one() {
    let server = Server::start(ScriptedRows::new(|_| says("x"))).await;
    let tokens = script::tokenizer().encode("hi", true).unwrap();
    for prompt in [json!("hi"), json!(["hi"]), json!(tokens), json!([tokens])] {
        let answer = server.client.post(COMPLETIONS, &json!({"prompt": prompt})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        assert_eq!(
            (&body["object"], &body["choices"][0]["text"]),
            (&json!("text_completion"), &json!("x"))
        );
        assert_eq!(server.rows.specs().pop().unwrap().prompt, tokens);
    }
}

#[tokio::test]
async fn eight_clients_at_once_each_get_their_own_answer() {
    let rows = ScriptedRows::new(|spec| {
        let text = script::tokenizer().decode(&spec.prompt).unwrap();
        [says(&text), vec![Step::Gate], says(&text)].concat()
    });
    let server = Server::start(rows).await;
    let client = server.client;
    let ask = async |index: usize| {
        let text = format!("client {index}");
        let body = completion(&text, json!({"stream": index.is_multiple_of(2)}));
        let answer = client.post(COMPLETIONS, &body).await;
        let told = if index.is_multiple_of(2) {
            told_in_frames(&answer, false)
        } else {
            told_whole(&answer)
        };
        assert_eq!(told.text, text.repeat(2));
    };
    let opens_when_all_are_live = async {
        while server.rows.specs().len() < 8 {
            tokio::task::yield_now().await;
        }
        server.rows.open_gate();
    };
    futures_util::join!(futures_util::future::join_all((0..8).map(ask)), opens_when_all_are_live);
}
