use std::collections::HashMap;

use serde_json::{Value, json};

use super::*;
use crate::error::Result;
use crate::hub::search::SearchOrder;
use crate::limits;

fn words(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[track_caller]
fn check_refused<T: std::fmt::Debug>(read: Result<T>, param: &str, message: &str) {
    let error = read.unwrap_err();
    assert_eq!(error.param(), Some(param), "{error}");
    assert!(error.message().contains(message), "{error}");
}

#[test]
fn a_search_is_of_mlx_models_by_downloads_unless_its_query_says_otherwise() {
    let plain = search(&words(&[])).unwrap();
    let told = (plain.text.as_str(), plain.mlx_only, plain.order, plain.hits_max);
    assert_eq!(told, ("", true, SearchOrder::Downloads, limits::SEARCH_HITS_DEFAULT));
    let all = words(&[("q", "qwen 3"), ("all", "true"), ("sort", "likes"), ("limit", "100")]);
    let all = search(&all).unwrap();
    let told = (all.text.as_str(), all.mlx_only, all.order, all.hits_max);
    assert_eq!(told, ("qwen 3", false, SearchOrder::Likes, 100));
    check_refused(search(&words(&[("limit", "0")])), "limit", "between 1 and 100, got `0`");
    check_refused(search(&words(&[("sort", "name")])), "sort", "`name`");
}

#[test]
fn a_download_is_of_main_at_full_speed_unless_its_body_says_otherwise() {
    let plain = fetch(&json!({"repo": "a/b"})).unwrap();
    assert_eq!((plain.revision.as_str(), plain.bytes_per_second), ("main", None));
    let slow = fetch(&json!({"repo": "a/b", "revision": "v1", "bytes_per_second": 5})).unwrap();
    assert_eq!((slow.revision.as_str(), slow.bytes_per_second), ("v1", Some(5)));
    check_refused(fetch(&json!({})), "repo", "`repo` is required");
    let negative = json!({"repo": "a/b", "bytes_per_second": -1});
    check_refused(fetch(&negative), "bytes_per_second", "at least 0, got -1");
}

#[test]
fn what_is_converted_is_packed_as_can_be() {
    let plain = convert(&json!({"model": "m", "bits": 4})).unwrap();
    assert_eq!((plain.bits, plain.group_size, plain.out), (4, 64, None));
    for (name, value, expected) in [
        ("bits", json!(5), "4 or 8, got 5"),
        ("bits", json!(4.0), "4 or 8"),
        ("bits", json!(1u64 << 40), "4 or 8"),
        ("group_size", json!("64"), "32, 64 or 128"),
        ("out", json!("../x"), "no repository"),
    ] {
        let mut body = json!({"model": "m", "bits": 4});
        body[name] = value;
        check_refused(convert(&body), name, expected);
    }
    check_refused(convert(&json!({"model": "m"})), "bits", "`bits` is required");
}

#[test]
fn a_token_that_is_none_is_refused_without_a_word_of_it() {
    assert!(token(&json!({"token": "hf_fine"})).is_ok());
    for body in [json!({"token": "hf_two words"}), json!({"token": ["hf_list"]}), json!({})] {
        let error = token(&body).unwrap_err();
        assert_eq!(error.param(), Some("token"));
        assert!(!error.to_string().contains("hf_"), "{error}");
    }
}

#[test]
fn a_file_is_imported_in_f32_unless_its_body_says_otherwise() {
    let read = |body: Value| import(&body).map(|request| request.dtype.to_string());
    assert_eq!(read(json!({"path": "/x.gguf"})).as_deref(), Ok("f32"));
    assert_eq!(read(json!({"path": "/x.gguf", "dtype": "bf16"})).as_deref(), Ok("bf16"));
    check_refused(
        read(json!({"path": "/x.gguf", "dtype": "int8"})),
        "dtype",
        "`f32`, `bf16` or `f16`",
    );
    check_refused(read(json!({"path": 7})), "path", "a string");
    check_refused(job("-1"), "id", "no job");
    assert_eq!(job("7"), Ok(7));
}
