//! Models that are fetched from a hub which does what a script says.

// All downloads of a process.
mod book;
// What goes wrong on the way, one thing at a time and all together.
mod faults;
// The real binary, killed and started again.
#[cfg(feature = "mlx")]
mod kills;
// Names that would lead elsewhere.
mod names;
// What is in the way of a download, or already there.
mod places;
// All of it over HTTP, by the real binary.
#[cfg(feature = "mlx")]
mod routes;
// Models that are looked for.
mod search;
// Who is shown the token.
mod tokens;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use slipstream_engine::clock::Clock;
use slipstream_engine::error::Result;
use slipstream_engine::hub::download::{Download, DownloadConfig, Ended, Fetching};
use slipstream_engine::hub::manifest::{Manifest, OWN_FOLDER};
use slipstream_engine::hub::places::Places;
use slipstream_engine::hub::remote::{Patience, Remote, RemoteConfig};
use slipstream_engine::hub::repo::{RepoId, Revision};
use slipstream_tests::hub::{Hub, HubFile};
use slipstream_tests::random::Random;

/// The repository that every hub of these tests has.
fn repo() -> RepoId {
    "owner/name".parse().unwrap()
}

/// `bytes` bytes that a seed decides.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.bits().to_le_bytes());
    words.flatten().take(bytes).collect()
}

/// A model of two shards and what belongs to it.
fn model(seed: u64, shard_bytes: usize) -> Vec<HubFile> {
    vec![
        HubFile::small(".gitattributes", "*.safetensors filter=lfs"),
        HubFile::small("config.json", format!("{{\"seed\": {seed}}}")),
        HubFile::small("tokenizer_config.json", ""),
        HubFile::large("model-00001-of-00002.safetensors", noise(seed, shard_bytes)),
        HubFile::large("model-00002-of-00002.safetensors", noise(seed + 1, shard_bytes / 2)),
        HubFile::large("tokenizer.json", noise(seed + 2, shard_bytes / 8)),
        HubFile::small("modeling.py", "import os"),
        HubFile::small("1_Pooling/config.json", "{}"),
    ]
}

/// What of `files` a download brings, by path.
fn expected(files: &[HubFile]) -> BTreeMap<String, Vec<u8>> {
    let wanted = |file: &&HubFile| !file.path.starts_with('.') && !file.path.ends_with(".py");
    files.iter().filter(wanted).map(|file| (file.path.clone(), file.content.to_vec())).collect()
}

/// The files below `folder` but our own, by path.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    gather(folder, "", &mut files);
    files
}

fn gather(folder: &Path, inside: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder.join(inside)).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{inside}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if name != OWN_FOLDER {
                gather(folder, &format!("{name}/"), files);
            }
        } else {
            files.insert(name, fs::read(entry.path()).unwrap());
        }
    }
}

/// A folder of models beside a hub.
struct Scene {
    hub: Hub,
    folder: tempfile::TempDir,
    files_at_once: usize,
}

impl Scene {
    fn new(files: Vec<HubFile>) -> Self {
        Self { hub: Hub::start(files), folder: tempfile::tempdir().unwrap(), files_at_once: 4 }
    }

    fn places(&self) -> Places {
        Places { models: self.folder.path().to_owned(), hugging_face: Vec::new() }
    }

    fn remote_config(&self) -> RemoteConfig {
        let patience = Patience { pause: Duration::ZERO, ..Patience::default() };
        RemoteConfig { patience, ..RemoteConfig::at(&self.hub.endpoint()).unwrap() }
    }

    fn remote(&self) -> Remote {
        Remote::new(self.remote_config(), Clock::monotonic()).unwrap()
    }

    fn fetching(&self) -> Fetching {
        let config = DownloadConfig {
            files_at_once: self.files_at_once,
            ..DownloadConfig::new(self.places())
        };
        Fetching::new(self.remote(), config)
    }

    fn download(&self) -> Download {
        Download::start(self.fetching(), repo(), Revision::default())
    }

    async fn fetch(&self) -> Result<Ended> {
        self.download().end().await
    }

    /// The model is in place, with every byte of `files`, and nothing else is left.
    #[track_caller]
    fn check_in_place(&self, files: &[HubFile]) {
        let folder = self.places().model(&repo());
        assert_eq!(tree(&folder), expected(files));
        let manifest = Manifest::read(&folder).unwrap().unwrap();
        let listed: Vec<_> = manifest
            .files
            .iter()
            .map(|file| (file.path.to_string(), file.digest.digits()))
            .collect();
        let wanted = expected(files);
        let files = files.iter().filter(|file| wanted.contains_key(&file.path));
        assert_eq!(
            listed,
            files.map(|file| (file.path.clone(), file.digest())).collect::<Vec<_>>()
        );
        let left = fs::read_dir(self.places().downloads())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["owner--name.lock"]);
    }

    /// Nothing looks like a model.
    #[track_caller]
    fn check_absent(&self) {
        assert!(!self.places().model(&repo()).exists());
    }
}

#[tokio::test]
async fn a_model_arrives_whole_with_nothing_that_could_be_code() {
    let files = model(1, 300_000);
    let scene = Scene::new(files.clone());
    let Ended::Installed { folder, manifest, fetched_bytes } = scene.fetch().await.unwrap() else {
        panic!("nobody cancelled it");
    };
    assert_eq!(folder, scene.places().model(&repo()));
    assert_eq!(
        fetched_bytes,
        expected(&files).values().map(|content| content.len() as u64).sum::<u64>()
    );
    assert_eq!(manifest.commit.as_str(), slipstream_tests::hub::COMMIT);
    scene.check_in_place(&files);
}
