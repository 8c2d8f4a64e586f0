use std::fs;
use std::time::Duration;

use super::*;
use crate::hub::repo::Revision;
use crate::hub::script::{ScriptedHub, write_model};

async fn offered(scene: &ScriptedHub, named: &[&str]) -> Offered {
    let sources = named.iter().map(|id| Source {
        id: (*id).into(),
        directory: scene.folder.path().join("named").join(id),
        weights_bytes: 1,
        download: None,
    });
    Offered::new(Directories::new(sources.collect()).unwrap(), scene.open().await)
}

fn ids(offered: &Offered) -> Vec<String> {
    offered.sources().iter().map(|source| source.id.to_string()).collect()
}

#[tokio::test]
async fn models_of_the_library_go_by_their_ids_and_by_short_names_that_only_one_has() {
    let scene = ScriptedHub::new();
    for id in ["a/same", "b/same", "b/other", "bare"] {
        scene.add(id);
    }
    let offered = offered(&scene, &[]).await;
    assert_eq!(ids(&offered), ["a/same", "b/other", "b/same", "bare"]);
    for (name, id) in
        [("a/same", "a/same"), ("other", "b/other"), ("B/OTHER", "b/other"), ("bare", "bare")]
    {
        assert_eq!(offered.find(name).map(|source| source.id.to_string()).as_deref(), Some(id));
    }
    let source = offered.find("b/other").unwrap();
    assert_eq!((source.directory, source.weights_bytes), (scene.models().join("b/other"), 32));
    for name in ["same", "nothing", "", "../bare", "b"] {
        assert_eq!(offered.find(name), None, "{name}");
    }
    let refusal = offered.refusal("same").unwrap();
    assert_eq!(refusal.code(), Code::ModelNotFound);
    assert!(refusal.to_string().contains("`a/same`, `b/same`"), "{refusal}");
    assert_eq!(offered.refusal("nothing"), None);
}

#[tokio::test]
async fn a_named_model_goes_before_one_of_the_library_that_is_called_like_it() {
    let scene = ScriptedHub::new();
    scene.add("x/mine");
    scene.add("mine");
    let offered = offered(&scene, &["mine", "last"]).await;
    assert_eq!(ids(&offered), ["mine", "last", "x/mine"]);
    let mine = offered.find("mine").unwrap();
    assert!(mine.directory.ends_with("named/mine"), "{mine:?}");
}

#[tokio::test]
async fn a_model_that_is_not_whole_is_not_offered_and_its_refusal_says_why() {
    let scene = ScriptedHub::new();
    fs::remove_file(scene.add("a/torn").join("tokenizer.json")).unwrap();
    let offered = offered(&scene, &[]).await;
    assert_eq!(ids(&offered), [""; 0]);
    assert_eq!(offered.find("a/torn"), None);
    let refusal = offered.refusal("torn").unwrap();
    assert_eq!((refusal.code(), refusal.param()), (Code::ModelNotFound, Some("model")));
    assert!(refusal.message().contains("missing: tokenizer.json"), "{refusal}");
}

#[tokio::test]
async fn a_new_model_is_found_after_a_look_which_is_taken_once_a_second_at_most() {
    let scene = ScriptedHub::new();
    let offered = offered(&scene, &[]).await;
    scene.add("a/late");
    assert_eq!(offered.find("late"), None);
    scene.clock.advance(Duration::from_millis(999));
    assert!(!offered.refresh().await);
    assert_eq!(offered.find("late"), None);
    scene.clock.advance(Duration::from_millis(1));
    assert!(offered.refresh().await);
    assert!(offered.find("late").is_some());
    write_model(&scene.models().join("a/later"));
    scene.clock.advance(Duration::from_millis(500));
    assert!(!offered.refresh().await);
    assert_eq!(offered.find("later"), None);
}

#[tokio::test]
async fn what_is_being_downloaded_is_shown_and_what_came_to_a_halt_is_told_when_asked_for() {
    let scene = ScriptedHub::new();
    let offered = offered(&scene, &[]).await;
    let repo = "owner/name".parse().unwrap();
    offered.hub.fetch(&repo, &Revision::default(), None).unwrap();
    assert_eq!(ids(&offered), ["owner/name"]);
    let source = offered.find("owner/name").unwrap();
    assert_eq!(source.download, Some(Download { done_bytes: 0, total_bytes: 0 }));
    let mut changes = offered.hub.watch();
    while !matches!(offered.hub.download(&repo).unwrap().state, DownloadState::Failed(_)) {
        changes.changed().await.unwrap();
    }
    assert_eq!((ids(&offered), offered.find("owner/name")), (Vec::new(), None));
    let refusal = offered.refusal("owner/name").unwrap();
    assert_eq!(refusal.code(), Code::ModelNotFound);
    assert!(refusal.message().contains("its download failed"), "{refusal}");
}

#[tokio::test]
async fn a_model_that_is_being_removed_is_found_by_nobody_and_back_if_it_stays() {
    let scene = ScriptedHub::new();
    let directory = scene.add("a/b");
    let offered = offered(&scene, &[]).await;
    let seen = offered.clone();
    let refused = offered.hub.remove("a/b", move |_| {
        assert_eq!(seen.find("a/b"), None);
        Err(Error::new(Code::InUse, "held"))
    });
    assert_eq!(refused.await.unwrap_err().code(), Code::InUse);
    assert!(offered.find("a/b").is_some() && directory.is_dir());
    let wrong = offered.hub.remove("b", |_| Ok(())).await.unwrap_err();
    assert_eq!(wrong.code(), Code::ModelNotFound, "a short name removes nothing");
    offered.hub.remove("a/b", |_| Ok(())).await.unwrap();
    assert!(offered.find("a/b").is_none() && !directory.exists());
}
