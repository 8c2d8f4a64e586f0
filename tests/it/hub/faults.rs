//! What goes wrong on the way, one thing at a time and all together.

use slipstream_engine::error::Code;
use slipstream_engine::hub::download::DownloadState;
use slipstream_tests::hub::Fault;
use slipstream_tests::random::Random;

use super::{Scene, model, repo};

/// Seeds of the property at the end.
const SEEDS: u64 = 40;

fn status(status: u16, line: &str) -> Fault {
    Fault::Status(status, vec![line.to_owned()])
}

/// The model arrives although `faults` befall the first answers for files, which come one after the other.
#[track_caller]
fn check(faults: Vec<Fault>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let files = model(7, 200_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = faults;
    runtime.block_on(scene.fetch()).unwrap();
    assert_eq!(scene.hub.script().faults, []);
    scene.check_in_place(&files);
}

#[test]
fn a_busy_hub_is_asked_again() {
    check(vec![
        status(429, "Retry-After: 0"),
        status(503, "X: y"),
        status(500, "X: y"),
        Fault::HangUp,
    ]);
}

#[test]
fn a_busy_api_is_asked_again() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let files = model(7, 1_000);
    let scene = Scene::new(files.clone());
    scene.hub.script().api_faults = vec![
        status(429, "Retry-After: 0"),
        status(502, "X: y"),
        Fault::HangUp,
        Fault::Drop { after_bytes: 5 },
    ];
    runtime.block_on(scene.fetch()).unwrap();
    scene.check_in_place(&files);
}

#[test]
fn a_dropped_connection_costs_no_byte_that_arrived() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let files = model(7, 200_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    let drop = |after_bytes| Fault::Drop { after_bytes };
    scene.hub.script().faults = vec![drop(1), drop(50_000), drop(100_000), drop(0)];
    runtime.block_on(scene.fetch()).unwrap();
    scene.check_in_place(&files);
    let heard = scene.hub.take_heard();
    let ranges: Vec<_> = heard
        .iter()
        .filter(|heard| heard.at_cdn)
        .filter_map(|heard| heard.headers.get("range"))
        .collect();
    assert_eq!(ranges, ["bytes=1-", "bytes=50001-", "bytes=150001-", "bytes=150001-"]);
    let with_range = heard.iter().filter(|heard| heard.headers.contains_key("range"));
    let tag = format!("\"{}\"", files[3].digest());
    assert!(with_range.filter(|heard| heard.at_cdn).all(|heard| heard.headers["if-range"] == tag));
}

#[test]
fn a_server_without_ranges_sends_the_file_again() {
    check(vec![Fault::Drop { after_bytes: 70_000 }, Fault::NoRange]);
}

#[test]
fn what_belongs_to_another_version_is_not_joined_to_what_is_there() {
    check(vec![Fault::Drop { after_bytes: 70_000 }, Fault::OtherTag]);
    check(vec![Fault::Drop { after_bytes: 70_000 }, Fault::WrongRange]);
    check(vec![Fault::Drop { after_bytes: 70_000 }, Fault::RangeRefused]);
}

#[test]
fn a_wrong_length_is_not_believed() {
    check(vec![Fault::Length(-1), Fault::Length(1), Fault::Length(100_000)]);
}

#[test]
fn a_flipped_bit_is_found_and_the_file_fetched_anew() {
    check(vec![Fault::Flip { at_byte: 123_456 }]);
    check(vec![Fault::Drop { after_bytes: 70_000 }, Fault::Flip { at_byte: 0 }]);
}

#[tokio::test]
async fn a_file_that_is_wrong_again_is_no_model() {
    let scene = Scene { files_at_once: 1, ..Scene::new(model(7, 1_000)) };
    scene.hub.script().faults = vec![Fault::Flip { at_byte: 1 }, Fault::Flip { at_byte: 2 }];
    let error = scene.fetch().await.unwrap_err();
    assert_eq!(error.code(), Code::HubUnreachable);
    assert!(error.message().contains("model-00001-of-00002.safetensors"), "{error}");
    assert!(error.message().contains("another content"), "{error}");
    scene.check_absent();
}

#[tokio::test]
async fn patience_ends_and_what_arrived_is_gone_on_with() {
    let files = model(7, 200_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = vec![Fault::Drop { after_bytes: 150_000 }];
    scene.hub.script().faults.extend(vec![Fault::Status(503, Vec::new()); 8]);
    let mut download = scene.download();
    let progress = download.progress();
    let error = download.end().await.unwrap_err();
    assert!(error.to_string().contains("gave up after 8 attempts"), "{error}");
    assert!(error.to_string().contains("503"), "{error}");
    assert_eq!(progress.borrow().state, DownloadState::Failed(error));
    assert_eq!(progress.borrow().done_bytes, 150_000);
    scene.check_absent();
    let before_bytes = scene.hub.file_bytes();
    scene.fetch().await.unwrap();
    scene.check_in_place(&files);
    let all_bytes: usize = super::expected(&files).values().map(Vec::len).sum();
    assert_eq!(scene.hub.file_bytes() - before_bytes, all_bytes as u64 - 150_000);
}

#[tokio::test]
async fn a_changed_tag_between_two_attempts_starts_the_file_anew() {
    let files = model(7, 200_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = vec![Fault::OtherTag, Fault::Drop { after_bytes: 9 }];
    scene.hub.script().faults[0] = Fault::Drop { after_bytes: 150_000 };
    scene.hub.script().faults.extend(vec![Fault::Status(503, Vec::new()); 9]);
    scene.fetch().await.unwrap_err();
    scene.hub.script().faults = vec![Fault::OtherTag];
    scene.fetch().await.unwrap();
    scene.check_in_place(&files);
}

/// A download among faults that a seed chooses; what was not patient enough is started again.
async fn survive(seed: u64) {
    let mut random = Random::new(seed);
    let files = model(seed, random.size(1, 120_000));
    let scene = Scene { files_at_once: random.size(1, 4), ..Scene::new(files.clone()) };
    let percent = random.between(10, 90);
    scene.hub.script().chaos = Some((random, percent));
    for _ in 0..50 {
        match scene.fetch().await {
            Ok(_) => return scene.check_in_place(&files),
            Err(_) => scene.check_absent(),
        }
    }
    scene.hub.script().chaos = None;
    scene.fetch().await.unwrap();
    scene.check_in_place(&files);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_goes_wrong_there_is_the_exact_model_or_none() {
    for seed in 1..=SEEDS {
        let survived = tokio::spawn(survive(seed)).await;
        assert!(survived.is_ok(), "seed {seed} of {}", repo());
    }
}
