//! Who is shown the token, and what is said where it opens nothing.

use slipstream_engine::clock::Clock;
use slipstream_engine::error::{Code, Error};
use slipstream_engine::hub::download::{Download, DownloadConfig, Fetching};
use slipstream_engine::hub::remote::{Remote, RemoteConfig};
use slipstream_engine::hub::repo::Revision;
use slipstream_engine::hub::token::Token;

use super::{Scene, model, repo};

/// Fetches with `token` from a hub that wants `hf_right`, and calls a missing or wrong one `code`.
async fn fetch(scene: &Scene, code: &'static str, token: Option<&str>) -> Result<(), Error> {
    scene.hub.script().wanted_token = Some("hf_right".to_owned());
    scene.hub.script().error_code = code;
    let token = token.map(|token| Token::parse(token).unwrap());
    let config = RemoteConfig { token, ..scene.remote_config() };
    let remote = Remote::new(config, Clock::monotonic()).unwrap();
    let fetching = Fetching::new(remote, DownloadConfig::new(scene.places()));
    Download::start(fetching, repo(), Revision::default()).end().await.map(drop)
}

#[tokio::test]
async fn the_token_opens_the_hub_and_never_reaches_another_host() {
    let files = model(3, 50_000);
    let scene = Scene::new(files.clone());
    fetch(&scene, "GatedRepo", Some("hf_right")).await.unwrap();
    scene.check_in_place(&files);
    let heard = scene.hub.take_heard();
    let (cdn, hub): (Vec<_>, Vec<_>) = heard.iter().partition(|heard| heard.at_cdn);
    assert!(cdn.len() >= 3 && hub.len() >= 7);
    assert!(hub.iter().all(|heard| heard.headers["authorization"] == "Bearer hf_right"));
    assert!(cdn.iter().all(|heard| !format!("{heard:?}").contains("hf_right")));
}

#[tokio::test]
async fn a_closed_repository_says_what_opens_it_and_never_the_token() {
    for (code, token, expected, words) in [
        ("GatedRepo", None, Code::HubDenied, "slipstream token set"),
        ("GatedRepo", Some("hf_wrong"), Code::HubDenied, "accept its terms"),
        ("RepoNotFound", None, Code::ModelNotFound, "or it is private"),
        ("RepoNotFound", Some("hf_wrong"), Code::ModelNotFound, "this token's account"),
        ("", Some("hf_wrong"), Code::HubDenied, "does not give access"),
    ] {
        let scene = Scene::new(model(3, 1_000));
        let error = fetch(&scene, code, token).await.unwrap_err();
        assert_eq!(error.code(), expected, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains("owner/name"), "{error}");
        assert!(!error.to_string().contains("hf_wrong"), "{error}");
        assert_eq!(scene.hub.take_heard().len(), 1, "a refusal is asked for again");
        scene.check_absent();
    }
}
