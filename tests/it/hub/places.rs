//! What is in the way of a download, or already there.

use std::fs;
use std::io;
use std::path::Path;

use slipstream_engine::error::Code;
use slipstream_engine::hub::download::{Download, DownloadConfig, DownloadState, Ended, Fetching};
use slipstream_engine::hub::manifest::Manifest;
use slipstream_engine::hub::repo::Revision;
use slipstream_tests::hub::{Fault, HubFile};

use super::{Scene, expected, model, repo, tree};

/// The commit after the first.
const NEXT_COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";

fn fetched_bytes(ended: &Ended) -> u64 {
    match ended {
        Ended::Installed { fetched_bytes, .. } => *fetched_bytes,
        Ended::Cancelled => panic!("nobody cancelled it"),
    }
}

#[tokio::test]
async fn a_model_that_is_there_is_not_fetched_again() {
    let files = model(9, 50_000);
    let scene = Scene::new(files.clone());
    scene.fetch().await.unwrap();
    let before_bytes = scene.hub.file_bytes();
    assert_eq!(fetched_bytes(&scene.fetch().await.unwrap()), 0);
    assert_eq!(scene.hub.file_bytes(), before_bytes);
    scene.check_in_place(&files);
}

#[tokio::test]
async fn of_an_updated_model_only_what_changed_is_fetched_and_replaced_with_the_rest() {
    let mut files = model(9, 50_000);
    let scene = Scene::new(files.clone());
    scene.fetch().await.unwrap();
    let before_bytes = scene.hub.file_bytes();
    files[1] = HubFile::small("config.json", "{\"seed\": 10}");
    files.remove(2);
    files.push(HubFile::small("chat_template.jinja", "{{ x }}"));
    scene.hub.script().files.clone_from(&files);
    scene.hub.script().commit = NEXT_COMMIT.to_owned();
    assert_eq!(fetched_bytes(&scene.fetch().await.unwrap()), 19);
    assert_eq!(scene.hub.file_bytes() - before_bytes, 19);
    scene.check_in_place(&files);
    let manifest = Manifest::read(&scene.places().model(&repo())).unwrap().unwrap();
    assert_eq!(manifest.commit.as_str(), NEXT_COMMIT);
}

#[tokio::test]
async fn an_update_that_fails_leaves_the_model_as_it_was() {
    let files = model(9, 50_000);
    let scene = Scene::new(files.clone());
    scene.fetch().await.unwrap();
    scene.hub.script().files = model(20, 50_000);
    scene.hub.script().commit = NEXT_COMMIT.to_owned();
    scene.hub.script().faults = vec![Fault::Status(503, Vec::new()); 100];
    scene.fetch().await.unwrap_err();
    assert_eq!(tree(&scene.places().model(&repo())), expected(&files));
    scene.hub.script().faults.clear();
    scene.fetch().await.unwrap();
    scene.check_in_place(&model(20, 50_000));
}

#[tokio::test]
async fn what_was_staged_of_an_older_commit_is_used_only_where_it_is_the_same() {
    let mut files = model(9, 200_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    // The first shard is whole, the second in part.
    scene.hub.script().faults = vec![Fault::NoRange, Fault::Drop { after_bytes: 60_000 }];
    scene.hub.script().faults.extend(vec![Fault::Status(503, Vec::new()); 9]);
    scene.fetch().await.unwrap_err();
    files[4] = HubFile::large("model-00002-of-00002.safetensors", super::noise(77, 100_000));
    scene.hub.script().files.clone_from(&files);
    scene.hub.script().commit = NEXT_COMMIT.to_owned();
    scene.hub.script().faults.clear();
    let before_bytes = scene.hub.file_bytes();
    scene.fetch().await.unwrap();
    scene.check_in_place(&files);
    let all_bytes: usize = expected(&files).values().map(Vec::len).sum();
    assert_eq!(scene.hub.file_bytes() - before_bytes, all_bytes as u64 - 200_000);
}

#[tokio::test]
async fn what_the_user_put_beside_a_model_stays_and_what_he_changed_is_fetched_anew() {
    let files = model(9, 50_000);
    let scene = Scene::new(files.clone());
    scene.fetch().await.unwrap();
    let folder = scene.places().model(&repo());
    fs::write(folder.join("kv_config.json"), "mine").unwrap();
    fs::write(folder.join(".slipstream/profiles.json"), "mine too").unwrap();
    // As long as it was, and changed after the model was finished.
    let config = folder.join("config.json");
    let length = fs::metadata(&config).unwrap().len() as usize;
    fs::remove_file(&config).unwrap();
    fs::write(&config, "x".repeat(length)).unwrap();
    let later = std::time::UNIX_EPOCH + std::time::Duration::from_secs(4_000_000_000);
    fs::File::options().write(true).open(&config).unwrap().set_modified(later).unwrap();
    scene.hub.script().commit = NEXT_COMMIT.to_owned();
    assert_eq!(fetched_bytes(&scene.fetch().await.unwrap()), length as u64);
    let mut wanted = expected(&files);
    wanted.insert("kv_config.json".to_owned(), b"mine".to_vec());
    assert_eq!(tree(&folder), wanted);
    assert_eq!(fs::read_to_string(folder.join(".slipstream/profiles.json")).unwrap(), "mine too");
}

#[tokio::test]
async fn a_folder_that_no_download_made_is_not_overwritten() {
    let scene = Scene::new(model(9, 1_000));
    let folder = scene.places().model(&repo());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let error = scene.fetch().await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest);
    assert!(error.message().contains("not overwritten"), "{error}");
    assert_eq!(scene.hub.file_bytes(), 0);
    assert_eq!(fs::read_to_string(folder.join("notes.txt")).unwrap(), "mine");
}

#[tokio::test]
async fn a_disk_without_room_is_told_before_anything_is_fetched() {
    let scene = Scene::new(model(9, 1_000));
    let tiny: fn(&Path) -> io::Result<u64> = |_| Ok(300_000);
    let config = DownloadConfig { free_bytes: tiny, ..DownloadConfig::new(scene.places()) };
    let mut download =
        Download::start(Fetching::new(scene.remote(), config), repo(), Revision::default());
    let error = download.end().await.unwrap_err();
    assert_eq!(error.code(), Code::DiskFull);
    assert!(error.message().contains("300.0 kB are free"), "{error}");
    assert!(error.message().contains("268.4 MB more"), "{error}");
    assert_eq!(scene.hub.file_bytes(), 0);
    scene.check_absent();
}

#[tokio::test]
async fn a_second_download_says_who_has_the_first() {
    let files = model(9, 100_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = vec![Fault::Hold { after_bytes: 1 }];
    let mut first = scene.download();
    first.progress().wait_for(|progress| progress.done_bytes > 0).await.unwrap();
    let error = scene.fetch().await.unwrap_err();
    assert!(
        error.message().contains("is being fetched by another download of this process"),
        "{error}"
    );
    first.pause();
    first.progress().wait_for(|progress| progress.state == DownloadState::Paused).await.unwrap();
    scene.fetch().await.unwrap();
    first.resume();
    assert_eq!(fetched_bytes(&first.end().await.unwrap()), 0);
    scene.check_in_place(&files);
}

#[tokio::test]
async fn a_paused_download_asks_for_nothing_and_goes_on_with_what_it_has() {
    let files = model(9, 100_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = vec![Fault::Hold { after_bytes: 40_000 }];
    let mut download = scene.download();
    let mut progress = download.progress();
    progress.wait_for(|progress| progress.done_bytes == 40_000).await.unwrap();
    download.pause();
    let paused = progress
        .wait_for(|progress| progress.state == DownloadState::Paused)
        .await
        .unwrap()
        .clone();
    assert_eq!((paused.done_bytes, paused.bytes_per_second, paused.remaining), (40_000, 0.0, None));
    let heard = scene.hub.take_heard().len();
    scene.check_absent();
    assert_eq!(scene.hub.take_heard().len(), 0, "after {heard} requests");
    download.resume();
    download.end().await.unwrap();
    assert!(
        scene
            .hub
            .take_heard()
            .iter()
            .any(|heard| heard.headers.get("range").is_some_and(|range| range == "bytes=40000-"))
    );
    scene.check_in_place(&files);
    assert_eq!(progress.borrow().state, DownloadState::Done);
    assert_eq!(progress.borrow().done_bytes, progress.borrow().total_bytes);
}

#[tokio::test]
async fn a_cancelled_download_leaves_nothing() {
    let scene = Scene { files_at_once: 1, ..Scene::new(model(9, 100_000)) };
    scene.hub.script().faults = vec![Fault::Hold { after_bytes: 40_000 }];
    let mut download = scene.download();
    download.progress().wait_for(|progress| progress.done_bytes > 0).await.unwrap();
    download.cancel();
    assert_eq!(download.end().await.unwrap(), Ended::Cancelled);
    assert_eq!(download.progress().borrow().state, DownloadState::Absent);
    assert_eq!(tree(&scene.places().downloads()).keys().collect::<Vec<_>>(), ["owner--name.lock"]);
}

#[tokio::test]
async fn a_renamed_repository_lies_under_the_name_that_the_hub_gives_it() {
    let files = model(9, 1_000);
    let scene = Scene::new(files.clone());
    let old = "Former/Name".parse().unwrap();
    let mut download = Download::start(scene.fetching(), old, Revision::default());
    download.end().await.unwrap();
    scene.check_in_place(&files);
}

#[tokio::test]
async fn offline_nothing_is_asked() {
    use slipstream_engine::clock::Clock;
    use slipstream_engine::hub::remote::{Remote, RemoteConfig};
    let scene = Scene::new(model(9, 1_000));
    let config = RemoteConfig { offline: true, ..scene.remote_config() };
    let remote = Remote::new(config, Clock::monotonic()).unwrap();
    let fetching = Fetching::new(remote, DownloadConfig::new(scene.places()));
    let error = Download::start(fetching, repo(), Revision::default()).end().await.unwrap_err();
    assert_eq!(error.code(), Code::HubUnreachable);
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    assert_eq!(scene.hub.take_heard().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bandwidth_is_kept_to_by_all_files_together() {
    use slipstream_engine::clock::Clock;
    use slipstream_engine::hub::remote::Remote;
    // Pieces are at most as large as what the client reads at once.
    const PIECES_BYTES_MAX: u64 = 4 * 512 * 1024;
    let files = model(9, 4_000_000);
    let scene = Scene::new(files.clone());
    let clock = Clock::manual();
    let remote = Remote::new(scene.remote_config(), clock.clone()).unwrap();
    let config =
        DownloadConfig { bytes_per_second: Some(1_000_000), ..DownloadConfig::new(scene.places()) };
    let mut download = Download::start(Fetching::new(remote, config), repo(), Revision::default());
    let progress = download.progress();
    let ended = tokio::spawn(async move { download.end().await });
    while !ended.is_finished() {
        clock.advance(std::time::Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
    ended.await.unwrap().unwrap();
    let total_bytes = progress.borrow().total_bytes;
    assert!(
        clock.now().as_secs_f64() * 1e6 >= (total_bytes - PIECES_BYTES_MAX) as f64,
        "{:?}",
        clock.now()
    );
    scene.check_in_place(&files);
}
