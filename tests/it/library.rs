//! What the library lists as ready, the loader loads: whatever became of the files.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Map, json};
use slipstream_engine::hub::library::{Library, State};
use slipstream_engine::hub::places::Places;
use slipstream_engine::mlx::Device;
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::tokenizer::Tokenizer;
use slipstream_tests::random::Random;

use crate::goldens;

/// Trees that are damaged at random.
const SEEDS: u64 = 400;

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// The files of a tiny checkpoint, its weights in one file or in two.
fn files(sharded: bool) -> Vec<(String, Vec<u8>)> {
    let directory = goldens::directory().join("llama-tiny");
    let read = |name: &str| (name.to_owned(), fs::read(directory.join(name)).unwrap());
    let mut files: Vec<_> =
        ["config.json", "tokenizer.json", "tokenizer_config.json"].map(read).into();
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    files.push(("chat_template.jinja".to_owned(), template.into()));
    files.push(("generation_config.json".to_owned(), b"{\"temperature\": 0.5}".to_vec()));
    match sharded {
        false => files.push(read("model.safetensors")),
        true => files.extend(shards(&read("model.safetensors").1)),
    }
    files
}

fn shards(whole: &[u8]) -> Vec<(String, Vec<u8>)> {
    let tensors = SafeTensors::deserialize(whole).unwrap();
    let mut names = tensors.names();
    names.sort();
    let (first, second) = names.split_at(names.len() / 2);
    let mut map = Map::new();
    let mut files = Vec::new();
    for (shard, names) in SHARDS.iter().zip([first, second]) {
        let views = names.iter().map(|name| (*name, tensors.tensor(name).unwrap()));
        files.push(((*shard).to_owned(), safetensors::serialize(views, None).unwrap()));
        map.extend(names.iter().map(|name| ((*name).to_owned(), (*shard).into())));
    }
    let index = json!({ "weight_map": map }).to_string();
    files.push(("model.safetensors.index.json".to_owned(), index.into_bytes()));
    files
}

/// A folder of ours and a cache with one model each.
struct World {
    root: tempfile::TempDir,
}

impl World {
    fn new(sharded: bool) -> Self {
        let world = Self { root: tempfile::tempdir().unwrap() };
        let (own, cached, blobs) = (world.own(), world.cached(), world.blobs());
        for folder in [&own, &cached, &blobs] {
            fs::create_dir_all(folder).unwrap();
        }
        for (name, content) in files(sharded) {
            fs::write(own.join(&name), &content).unwrap();
            fs::write(blobs.join(&name), &content).unwrap();
            link(&Path::new("../../blobs").join(&name), &cached.join(&name));
        }
        world
    }

    fn own(&self) -> PathBuf {
        self.root.path().join("models/owner/own")
    }

    fn cached(&self) -> PathBuf {
        self.root.path().join("hub/models--owner--cached/snapshots/0123abcd")
    }

    fn blobs(&self) -> PathBuf {
        self.root.path().join("hub/models--owner--cached/blobs")
    }

    fn library(&self) -> Library {
        Library::open(Places {
            models: self.root.path().join("models"),
            hugging_face: vec![self.root.path().join("hub")],
        })
    }

    /// Cuts, removes or redirects a file somewhere.
    fn damage(&self, random: &mut Random) {
        let folder = [self.own(), self.cached(), self.blobs()][random.size(0, 2)].clone();
        let mut paths: Vec<_> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
        paths.sort();
        if paths.is_empty() {
            return;
        }
        let path = &paths[random.size(0, paths.len() - 1)];
        match random.size(0, 3) {
            0 => drop(fs::remove_file(path)),
            1 => {
                drop(fs::remove_file(path));
                link(Path::new("nowhere"), path);
            }
            _ => {
                let Ok(content) = fs::read(path) else { return };
                let length = match random.size(0, 1) {
                    0 => random.size(0, content.len()),
                    _ => content.len().saturating_sub(random.size(0, 3)),
                };
                fs::write(path, &content[..length]).unwrap();
            }
        }
    }
}

#[cfg(unix)]
fn link(target: &Path, path: &Path) {
    std::os::unix::fs::symlink(target, path).unwrap();
}

#[test]
fn whatever_became_of_files_what_is_listed_as_ready_loads() {
    let back_end = Device::cpu().back_end();
    let (mut ready, mut others) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let world = World::new(random.size(0, 1) == 0);
        for _ in 0..random.size(0, 2) {
            world.damage(&mut random);
        }
        for entry in world.library().entries() {
            if entry.state != State::Ready {
                others += 1;
                continue;
            }
            ready += 1;
            let loaded = model::load(&entry.directory, LoadOptions { dtype: None, back_end });
            let loaded = loaded.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let facts = entry.facts.as_ref().unwrap();
            assert_eq!(facts.weights.all.bytes(4), loaded.weights_bytes, "seed {seed}");
            let tokenizer = Tokenizer::load(&entry.directory);
            tokenizer.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    assert!(ready > 100 && others > 100, "{ready} ready and {others} others show little");
}
