//! All downloads of a process.

use slipstream_engine::error::Code;
use slipstream_engine::hub::download::{DownloadProgress, DownloadState, Downloads};
use slipstream_engine::hub::repo::{RepoId, Revision};
use slipstream_tests::hub::Fault;

use super::{Scene, model, repo, tree};

/// Waits until the book lists the states in this order.
async fn states(downloads: &Downloads, expected: &[DownloadState]) -> Vec<DownloadProgress> {
    let are = |listed: &Vec<DownloadProgress>| {
        listed.iter().map(|progress| &progress.state).eq(expected.iter())
    };
    downloads.watch().wait_for(are).await.unwrap().clone()
}

#[tokio::test]
async fn downloads_take_turns_and_are_done_in_the_end() {
    let files = model(11, 50_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = vec![Fault::Hold { after_bytes: 10 }];
    let downloads = Downloads::open(scene.fetching(), 1).unwrap();
    let other: RepoId = "owner/other".parse().unwrap();
    downloads.start(&repo(), &Revision::default()).unwrap();
    downloads.start(&other, &Revision::default()).unwrap();
    states(&downloads, &[DownloadState::Running, DownloadState::Queued]).await;
    downloads.start(&repo(), &Revision::default()).unwrap();
    assert_eq!(downloads.list().len(), 2);
    let mut watch = downloads.watch();
    watch.wait_for(|listed| listed[0].done_bytes == 10).await.unwrap();
    downloads.pause(&other).unwrap();
    states(&downloads, &[DownloadState::Running, DownloadState::Paused]).await;
    downloads.pause(&repo()).unwrap();
    states(&downloads, &[DownloadState::Paused, DownloadState::Paused]).await;
    // The hub calls the other one `owner/name` too, so it finds what the first has staged.
    downloads.resume(&other).unwrap();
    states(&downloads, &[DownloadState::Paused, DownloadState::Done]).await;
    downloads.resume(&repo()).unwrap();
    states(&downloads, &[DownloadState::Done, DownloadState::Done]).await;
    assert_eq!(downloads.state(&repo()), DownloadState::Done);
    scene.check_in_place(&files);
}

#[tokio::test]
async fn what_an_earlier_process_left_is_listed_as_paused_and_goes_on() {
    let files = model(11, 50_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    scene.hub.script().faults = vec![Fault::NoRange, Fault::Drop { after_bytes: 20_000 }];
    scene.hub.script().faults.extend(vec![Fault::Status(503, Vec::new()); 9]);
    scene.fetch().await.unwrap_err();
    scene.hub.script().faults.clear();
    let downloads = Downloads::open(scene.fetching(), 2).unwrap();
    let left = &downloads.list()[0];
    assert_eq!((&left.repo, &left.state), (&repo(), &DownloadState::Paused));
    assert_eq!(left.done_bytes, 70_000);
    assert_eq!(left.commit.as_ref().unwrap().as_str(), slipstream_tests::hub::COMMIT);
    downloads.resume(&repo()).unwrap();
    states(&downloads, &[DownloadState::Done]).await;
    scene.check_in_place(&files);
    assert_eq!(Downloads::open(scene.fetching(), 2).unwrap().list(), []);
}

#[tokio::test]
async fn a_failed_download_says_why_and_can_be_resumed() {
    let files = model(11, 1_000);
    let scene = Scene::new(files.clone());
    scene.hub.script().api_faults =
        vec![Fault::Status(404, vec!["X-Error-Code: RevisionNotFound".to_owned()])];
    let downloads = Downloads::open(scene.fetching(), 2).unwrap();
    downloads.start(&repo(), &"v9".parse().unwrap()).unwrap();
    let mut watch = downloads.watch();
    let listed =
        watch.wait_for(|listed| matches!(listed[0].state, DownloadState::Failed(_))).await.unwrap();
    let DownloadState::Failed(error) = &listed[0].state else { unreachable!("it was waited for") };
    assert_eq!(error.code(), Code::ModelNotFound);
    assert!(error.message().contains("no such revision"), "{error}");
    drop(listed);
    downloads.resume(&repo()).unwrap();
    states(&downloads, &[DownloadState::Done]).await;
    scene.check_in_place(&files);
}

#[tokio::test]
async fn a_cancelled_download_is_gone_whether_it_runs_rests_or_is_done() {
    let files = model(11, 50_000);
    let scene = Scene { files_at_once: 1, ..Scene::new(files.clone()) };
    let downloads = Downloads::open(scene.fetching(), 2).unwrap();
    for rests in [false, true] {
        scene.hub.script().faults = vec![Fault::Hold { after_bytes: 10 }];
        downloads.start(&repo(), &Revision::default()).unwrap();
        downloads.watch().wait_for(|listed| listed[0].done_bytes == 10).await.unwrap();
        if rests {
            downloads.pause(&repo()).unwrap();
            states(&downloads, &[DownloadState::Paused]).await;
        }
        downloads.cancel(&repo()).await.unwrap();
        states(&downloads, &[]).await;
        assert_eq!(
            tree(&scene.places().downloads()).keys().collect::<Vec<_>>(),
            ["owner--name.lock"]
        );
        assert_eq!(downloads.state(&repo()), DownloadState::Absent);
    }
    downloads.start(&repo(), &Revision::default()).unwrap();
    states(&downloads, &[DownloadState::Done]).await;
    downloads.cancel(&repo()).await.unwrap();
    states(&downloads, &[]).await;
    scene.check_in_place(&files);
    for unknown in
        [downloads.pause(&repo()), downloads.resume(&repo()), downloads.cancel(&repo()).await]
    {
        assert_eq!(unknown.unwrap_err().code(), Code::ModelNotFound);
    }
}
