//! Models that are looked for, and looked at.

use serde_json::json;
use slipstream_engine::clock::Clock;
use slipstream_engine::error::Code;
use slipstream_engine::hub::remote::{Remote, RemoteConfig};
use slipstream_engine::hub::repo::Revision;
use slipstream_engine::hub::search::{SearchOrder, SearchQuery, describe, search};
use slipstream_tests::hub::HubFile;

use super::{Scene, expected, model, repo};

#[tokio::test]
async fn a_search_tells_what_the_hub_found() {
    let scene = Scene::new(Vec::new());
    scene.hub.script().hits = json!([
        { "id": "mlx-community/a", "downloads": 9, "likes": 4, "tags": ["mlx"], "gated": "auto",
          "safetensors": { "parameters": { "BF16": 1_000 } } },
        { "id": "not/a/name" },
        { "id": "mlx-community/b" },
    ]);
    let query = SearchQuery { order: SearchOrder::Likes, ..SearchQuery::new("a b") };
    let hits = search(&scene.remote(), &query).await.unwrap();
    let told: Vec<_> =
        hits.iter().map(|hit| (hit.repo.to_string(), hit.weight_bytes(), hit.gated)).collect();
    assert_eq!(
        told,
        [
            ("mlx-community/a".to_owned(), Some(2_000), true),
            ("mlx-community/b".to_owned(), None, false)
        ]
    );
    let target = &scene.hub.take_heard()[0].target;
    assert!(target.contains("search=a+b&filter=mlx&sort=likes&direction=-1&limit=20&"), "{target}");
}

#[tokio::test]
async fn a_search_without_a_connection_or_offline_says_so() {
    let scene = Scene::new(Vec::new());
    let offline = RemoteConfig { offline: true, ..scene.remote_config() };
    let remote = Remote::new(offline, Clock::monotonic()).unwrap();
    let error = search(&remote, &SearchQuery::new("x")).await.unwrap_err();
    assert!(error.message().contains("offline"), "{error}");
    scene.hub.script().hits = json!({ "error": "login" });
    let error = search(&scene.remote(), &SearchQuery::new("x")).await.unwrap_err();
    assert_eq!(error.code(), Code::HubUnreachable);
    assert!(error.message().contains("no list of models"), "{error}");
}

#[tokio::test]
async fn a_model_is_described_by_its_configuration_and_its_files_alone() {
    let files = model(13, 10_000);
    let scene = Scene::new(files.clone());
    let description = describe(&scene.remote(), &repo(), &Revision::default()).await.unwrap();
    assert_eq!(description.config, Some(json!({ "seed": 13 })));
    assert_eq!(description.repository.files.len(), files.len());
    let all_bytes: usize = expected(&files).values().map(Vec::len).sum();
    assert_eq!(description.fetched_bytes(), all_bytes as u64);
    assert_eq!(scene.hub.file_bytes(), files[1].content.len() as u64);
    scene.hub.script().files = vec![HubFile::large("pytorch_model.bin", "x")];
    let description = describe(&scene.remote(), &repo(), &Revision::default()).await.unwrap();
    assert_eq!(description.config, None);
    assert_eq!(description.choice.unwrap_err().code(), Code::BadModel);
}
