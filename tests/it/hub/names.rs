//! Names that would lead elsewhere.

use std::fs;

use slipstream_engine::error::Code;
use slipstream_tests::hub::HubFile;

use super::{Scene, model, repo};

#[tokio::test]
async fn a_repository_with_a_path_that_leads_elsewhere_is_refused_whole() {
    for path in [
        "../x.json",
        "a/../../../x.json",
        "/etc/x.json",
        "a\\b.json",
        "..\\x.json",
        "nul.json",
        "c:x.json",
    ] {
        let mut files = model(5, 1_000);
        files.push(HubFile::small(path, "{}"));
        let scene = Scene::new(files);
        let error = scene.fetch().await.unwrap_err();
        assert_eq!(error.code(), Code::BadModel, "{path}: {error}");
        assert_eq!(scene.hub.file_bytes(), 0, "{path}");
        scene.check_absent();
        assert_eq!(fs::read_dir(scene.folder.path()).unwrap().count(), 0, "{path}");
    }
}

#[tokio::test]
async fn a_list_that_goes_on_at_another_host_is_not_followed() {
    let scene = Scene::new(model(5, 1_000));
    scene.hub.script().page_files = 2;
    scene.hub.script().next_page = Some("http://elsewhere.invalid/more".to_owned());
    let error = scene.fetch().await.unwrap_err();
    assert_eq!(error.code(), Code::HubUnreachable);
    assert!(error.message().contains("at another place"), "{error}");
}

#[tokio::test]
async fn a_long_list_comes_in_pages() {
    let files = model(5, 1_000);
    for page_files in [1, 3, 8] {
        let scene = Scene::new(files.clone());
        scene.hub.script().page_files = page_files;
        scene.fetch().await.unwrap();
        scene.check_in_place(&files);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_where_a_folder_or_file_should_be_is_not_followed() {
    use std::os::unix::fs::symlink;
    let elsewhere = tempfile::tempdir().unwrap();
    let untouched = || fs::read_dir(elsewhere.path()).unwrap().count();
    for link in [".downloads", ".downloads/owner--name", "owner", "owner/name"] {
        let scene = Scene::new(model(5, 1_000));
        let path = scene.folder.path().join(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(elsewhere.path(), &path).unwrap();
        let error = scene.fetch().await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest, "{link}: {error}");
        assert!(error.message().contains("link"), "{error}");
        assert_eq!(untouched(), 0, "{link}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_in_place_of_a_partial_file_is_removed_and_its_target_left_alone() {
    use std::os::unix::fs::symlink;
    let files = model(5, 1_000);
    let scene = Scene::new(files.clone());
    let target = scene.folder.path().join("precious");
    fs::write(&target, "precious").unwrap();
    let staging = scene.places().staging(&repo());
    fs::create_dir_all(&staging).unwrap();
    let shard = &files[3];
    symlink(&target, staging.join(format!("{}.{}.partial", shard.path, &shard.digest()[..16])))
        .unwrap();
    symlink(&target, staging.join("config.json")).unwrap();
    scene.fetch().await.unwrap();
    scene.check_in_place(&files);
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}
