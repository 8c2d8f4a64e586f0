use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

/// Folders of models and a cache, both empty.
struct World {
    root: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("models")).unwrap();
        fs::create_dir_all(root.path().join("hub")).unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn places(&self) -> Places {
        Places { models: self.path("models"), hugging_face: vec![self.path("hub")] }
    }

    fn library(&self) -> Library {
        Library::open(self.places())
    }

    /// `<id> <state>` of every entry.
    fn listed(&self) -> Vec<String> {
        let library = self.library();
        library.entries().map(|entry| format!("{} {}", entry.id, entry.state.name())).collect()
    }

    /// A snapshot in the cache: its files are links to blobs, as Hugging Face's tools make them. `blobs` names
    /// a blob, so that two snapshots may share it.
    fn snapshot(&self, repository: &str, commit: &str, blobs: &[(&str, &str, Vec<u8>)]) -> PathBuf {
        let repository = self.path("hub").join(repository);
        let snapshot = repository.join("snapshots").join(commit);
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(repository.join("blobs")).unwrap();
        for (name, blob, content) in blobs {
            fs::write(repository.join("blobs").join(blob), content).unwrap();
            link(&Path::new("../../blobs").join(blob), &snapshot.join(name));
        }
        snapshot
    }

    fn reference(&self, repository: &str, name: &str, commit: &str) {
        let path = self.path("hub").join(repository).join("refs").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, commit).unwrap();
    }
}

fn link(target: &Path, path: &Path) {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink(target, path).unwrap();
}

fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 32,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64,
    })
}

/// A safetensors file with one tensor of `values` numbers in f32.
fn shard(name: &str, values: usize) -> Vec<u8> {
    let entry = json!({ "dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values] });
    let header = json!({ name: entry }).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; 4 * values]].concat()
}

fn tokenizer() -> Vec<u8> {
    b"{\"model\":{\"vocab\":{}}}".to_vec()
}

/// The files of a whole model.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", config().to_string().into_bytes()),
        ("model.safetensors", shard("model.norm.weight", 8)),
        ("tokenizer.json", tokenizer()),
    ]
}

fn write(directory: &Path, files: &[(&str, Vec<u8>)]) {
    fs::create_dir_all(directory).unwrap();
    for (name, content) in files {
        fs::write(directory.join(name), content).unwrap();
    }
}

fn blobs(prefix: &str) -> Vec<(&'static str, String, Vec<u8>)> {
    let named = |(name, content)| (name, format!("{prefix}-{name}"), content);
    files().into_iter().map(named).collect()
}

fn borrowed<'a>(blobs: &'a [(&'a str, String, Vec<u8>)]) -> Vec<(&'a str, &'a str, Vec<u8>)> {
    blobs.iter().map(|(name, blob, content)| (*name, blob.as_str(), content.clone())).collect()
}

const MAIN: &str = "1111111111111111111111111111111111111111";
const OLD: &str = "2222222222222222222222222222222222222222";

#[test]
fn models_are_found_in_both_places_and_called_by_their_repositories() {
    let world = World::new();
    write(&world.path("models/owner/name"), &files());
    write(&world.path("models/imported"), &files());
    write(&world.path("models/_/gpt2"), &files());
    let all = blobs("a");
    world.snapshot("models--meta--llama-3--8b", MAIN, &borrowed(&all));
    world.snapshot("models--owner--name", MAIN, &borrowed(&all));
    world.snapshot("models--bare", MAIN, &borrowed(&all));
    world.snapshot("datasets--some--set", MAIN, &borrowed(&all));
    assert_eq!(
        world.listed(),
        [
            "bare ready",
            "gpt2 ready",
            "imported ready",
            "meta/llama-3--8b ready",
            "owner/name ready",
            "owner/name@hugging-face ready",
        ]
    );
}

#[test]
fn what_is_on_its_way_is_not_listed() {
    let world = World::new();
    for folder in [
        "models/.downloads/owner--name",
        "models/.removed/name-0",
        "models/imported.partial",
        "models/owner/converted.partial",
        "models/imported.replaced",
        "models/empty",
    ] {
        write(&world.path(folder), &files()[..if folder.ends_with("empty") { 0 } else { 3 }]);
    }
    fs::write(world.path("models/a file"), "text").unwrap();
    assert_eq!(world.listed(), Vec::<String>::new());
}

#[test]
fn the_snapshot_of_main_has_the_plain_name_and_others_their_commits() {
    let world = World::new();
    let (new, old) = (blobs("new"), blobs("old"));
    world.snapshot("models--o--n", OLD, &borrowed(&old));
    assert_eq!(world.listed(), ["o/n ready"]);
    world.snapshot("models--o--n", MAIN, &borrowed(&new));
    world.reference("models--o--n", "main", MAIN);
    assert_eq!(world.listed(), ["o/n ready", "o/n@22222222 ready"]);
    let library = world.library();
    assert_eq!(library.find("o/n").unwrap().commit.as_deref(), Some(MAIN));
    world.reference("models--o--n", "main", OLD);
    assert_eq!(world.listed(), ["o/n ready", "o/n@11111111 ready"]);
}

#[track_caller]
fn check_state(change: impl Fn(&Path), state: &str, named: &str) {
    let world = World::new();
    let directory = world.path("models/owner/name");
    write(&directory, &files());
    assert_eq!(world.listed(), ["owner/name ready"]);
    change(&directory);
    let library = world.library();
    let entry = library.entries().next().expect("it is listed");
    assert_eq!(entry.state.name(), state, "{:?}", entry.state);
    let reason = entry.state.reason().unwrap();
    assert!(reason.contains(named), "`{named}` is not in `{reason}`");
    let error = entry.check_ready().unwrap_err();
    assert!(error.message().contains(named), "{error}");
}

#[test]
fn what_is_missing_or_cut_short_is_told_by_name() {
    let remove =
        |name: &'static str| move |model: &Path| fs::remove_file(model.join(name)).unwrap();
    check_state(remove("config.json"), "incomplete", "config.json");
    check_state(remove("model.safetensors"), "incomplete", "model.safetensors");
    check_state(remove("tokenizer.json"), "incomplete", "tokenizer.json");
    for name in ["model.safetensors", "tokenizer.json"] {
        let cut = |model: &Path| {
            let content = fs::read(model.join(name)).unwrap();
            fs::write(model.join(name), &content[..content.len() - 1]).unwrap();
        };
        check_state(cut, "incomplete", &format!("{name} (cut short)"));
    }
    let dangling = |model: &Path| link(Path::new("nowhere"), &model.join("model.safetensors"));
    check_state(dangling, "incomplete", "model.safetensors");
    let other = |model: &Path| link(Path::new("nowhere"), &model.join("chat_template.jinja"));
    check_state(other, "incomplete", "chat_template.jinja");
}

#[test]
fn every_shard_that_the_index_names_must_be_there() {
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let split = |written: usize| {
        move |model: &Path| {
            fs::remove_file(model.join("model.safetensors")).unwrap();
            let map = json!({ "weight_map": { "a": names[0], "b": names[1] } });
            fs::write(model.join("model.safetensors.index.json"), map.to_string()).unwrap();
            for name in &names[..written] {
                fs::write(model.join(name), shard(name, 4)).unwrap();
            }
        }
    };
    check_state(split(1), "incomplete", names[1]);
    let without_index = |model: &Path| {
        split(2)(model);
        fs::remove_file(model.join("model.safetensors.index.json")).unwrap();
    };
    check_state(without_index, "incomplete", "model.safetensors.index.json");
    let outside = |model: &Path| {
        let map = json!({ "weight_map": { "a": "../model.safetensors" } });
        fs::write(model.join("model.safetensors.index.json"), map.to_string()).unwrap();
    };
    check_state(outside, "damaged", "../model.safetensors");
}

#[test]
fn what_is_not_run_and_what_is_damaged_are_told_apart() {
    let with = |name: &'static str, value: Value| {
        move |model: &Path| {
            let mut fields = config();
            fields[name] = value.clone();
            fs::write(model.join("config.json"), fields.to_string()).unwrap();
        }
    };
    check_state(with("model_type", json!("mamba9")), "unsupported", "mamba9");
    let gptq = json!({ "quant_method": "gptq" });
    check_state(with("quantization_config", gptq), "unsupported", "quant_method");
    check_state(with("hidden_size", json!("wide")), "damaged", "hidden_size");
    check_state(with("model_type", Value::Null), "damaged", "model_type");
    let write = |name: &'static str, text: &'static [u8]| {
        move |model: &Path| fs::write(model.join(name), text).unwrap()
    };
    check_state(write("config.json", b"{\"model_type\": \"llama\""), "damaged", "config.json");
    check_state(write("config.json", b"\xff{}"), "damaged", "config.json");
    check_state(write("tokenizer_config.json", b"[]"), "damaged", "tokenizer_config.json");
    check_state(write("chat_template.jinja", b"{% if x"), "damaged", "chat_template.jinja");
    let half_embedding = |model: &Path| {
        with("model_type", json!("qwen3"))(model);
        fs::write(model.join("modules.json"), "[]").unwrap();
    };
    check_state(half_embedding, "incomplete", "1_Pooling/config.json");
    check_state(write("modules.json", b"[]"), "unsupported", "embedding");
    let embedding = |model: &Path| {
        fs::create_dir(model.join("1_Pooling")).unwrap();
        for name in ["modules.json", "1_Pooling/config.json"] {
            fs::write(model.join(name), "[]").unwrap();
        }
    };
    check_state(embedding, "unsupported", "embedding");
    let longer = |model: &Path| {
        let content = [fs::read(model.join("model.safetensors")).unwrap(), vec![0]].concat();
        fs::write(model.join("model.safetensors"), content).unwrap();
    };
    check_state(longer, "damaged", "its header describes");
    let foreign = |model: &Path| {
        fs::rename(model.join("model.safetensors"), model.join("pytorch_model.bin")).unwrap();
    };
    check_state(foreign, "unsupported", "pytorch_model.bin");
}

#[test]
fn a_download_of_ours_must_have_the_files_of_its_manifest() {
    let world = World::new();
    let directory = world.path("models/owner/name");
    write(&directory, &files());
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let file = |path: &str, bytes: usize| json!({ "path": path, "bytes": bytes, "digest": format!("git-blob:{commit}") });
    let manifest = |files: Vec<Value>| {
        let manifest = json!({
            "version": 1, "repo": "owner/name", "commit": commit,
            "finished_at_unix_seconds": 1, "files": files,
        });
        fs::create_dir_all(directory.join(".slipstream")).unwrap();
        fs::write(directory.join(".slipstream/manifest.json"), manifest.to_string()).unwrap();
    };
    let whole = |name: &str| file(name, fs::read(directory.join(name)).unwrap().len());
    manifest(vec![whole("config.json"), whole("model.safetensors")]);
    let library = world.library();
    let entry = library.find("name").unwrap();
    assert_eq!((entry.state.name(), entry.commit.as_deref()), ("ready", Some(commit)));
    manifest(vec![whole("config.json"), file("chat_template.jinja", 3)]);
    let missing = State::Incomplete(vec!["chat_template.jinja".to_owned()]);
    assert_eq!(world.library().find("name").unwrap().state, missing);
    manifest(vec![file("config.json", 1 << 20)]);
    let cut = State::Incomplete(vec!["config.json (cut short)".to_owned()]);
    assert_eq!(world.library().find("name").unwrap().state, cut);
}

#[test]
fn a_scan_tells_what_changed_and_reads_nothing_else() {
    let world = World::new();
    write(&world.path("models/one"), &files());
    write(&world.path("models/two"), &files());
    let mut library = world.library();
    assert!(library.rescan().is_empty());
    write(&world.path("models/three"), &files());
    fs::remove_dir_all(world.path("models/one")).unwrap();
    fs::write(world.path("models/two/model.safetensors"), shard("model.norm.weight", 16)).unwrap();
    let changes = library.rescan();
    let expected = Changes {
        added: vec!["three".to_owned()],
        removed: vec!["one".to_owned()],
        changed: vec!["two".to_owned()],
    };
    assert_eq!(changes, expected);
    assert!(library.rescan().is_empty());
    let parameters = |name| library.find(name).unwrap().facts.as_ref().unwrap().weights.parameters;
    assert_eq!((parameters("two"), parameters("three")), (16, 8));
}

#[test]
fn a_rename_of_the_same_content_changes_an_entry() {
    let world = World::new();
    let all = blobs("a");
    world.snapshot("models--o--n", MAIN, &borrowed(&all));
    let mut library = world.library();
    let snapshot = world.path("hub/models--o--n/snapshots").join(MAIN);
    let blob = fs::read_link(snapshot.join("tokenizer.json")).unwrap();
    fs::remove_file(snapshot.join(blob)).unwrap();
    assert_eq!(library.rescan().changed, ["o/n"]);
    assert_eq!(library.find("o/n").unwrap().state.name(), "incomplete");
}

#[test]
fn a_name_is_an_id_or_what_only_one_entry_is_called() {
    let world = World::new();
    for name in ["a/Qwen3-8B", "b/Qwen3-8B", "b/SmolLM2"] {
        write(&world.path("models").join(name), &files());
    }
    let library = world.library();
    for (name, id) in [
        ("b/SmolLM2", "b/SmolLM2"),
        ("smollm2", "b/SmolLM2"),
        ("B/smolLM2", "b/SmolLM2"),
        ("a/qwen3-8b", "a/Qwen3-8B"),
    ] {
        assert_eq!(library.find(name).unwrap().id, id);
    }
    let error = library.find("qwen3-8b").unwrap_err();
    assert_eq!(error.code(), Code::ModelNotFound);
    let hint = error.hint().unwrap();
    assert!(hint.contains("a/Qwen3-8B") && hint.contains("b/Qwen3-8B"), "{hint}");
    let near = library.find("SmolLM").unwrap_err();
    assert!(near.hint().unwrap().contains("b/SmolLM2"), "{near}");
    let far = library.find("zzz").unwrap_err();
    assert!(far.hint().unwrap().contains("there are"), "{far}");
    let nothing = World::new().library().find("x").unwrap_err();
    assert!(nothing.hint().unwrap().contains("no models"), "{nothing}");
}

#[test]
fn of_two_entries_with_one_short_name_the_one_that_is_ready_is_meant() {
    let world = World::new();
    write(&world.path("models/a/name"), &files());
    write(&world.path("models/b/name"), &files()[..1]);
    assert_eq!(world.library().find("name").unwrap().id, "a/name");
}

#[test]
fn a_folder_of_ours_goes_with_its_owner_and_nothing_else_does() {
    let world = World::new();
    write(&world.path("models/owner/name"), &files());
    write(&world.path("models/other/name"), &files());
    let mut library = world.library();
    let expected_bytes = library.find("owner/name").unwrap().disk_bytes;
    let removed = library.remove("owner/name", &|_| false).unwrap();
    assert_eq!(removed.freed_bytes, expected_bytes);
    assert!(!world.path("models/owner").exists() && world.path("models/other").exists());
    assert!(!world.path("models/.removed").exists());
    assert_eq!(world.listed(), ["other/name ready"]);
    assert!(library.rescan().is_empty());
    let error = library.remove("owner/name", &|_| false).unwrap_err();
    assert_eq!(error.code(), Code::ModelNotFound);
}

#[test]
fn an_entry_that_somebody_holds_stays_and_so_does_one_that_is_not_called_by_its_id() {
    let world = World::new();
    let directory = world.path("models/owner/name");
    write(&directory, &files());
    let mut library = world.library();
    let error = library.remove("owner/name", &|held| held == directory).unwrap_err();
    assert!(error.message().contains("in use"), "{error}");
    let error = library.remove("name", &|_| false).unwrap_err();
    assert!(error.hint().unwrap().contains("owner/name"), "{error}");
    assert_eq!(world.listed(), ["owner/name ready"]);
}

#[test]
fn what_a_killed_removal_left_is_not_listed_and_goes_with_the_next() {
    let world = World::new();
    write(&world.path("models/.removed/owner-0"), &files());
    write(&world.path("models/owner/name"), &files());
    let mut library = world.library();
    assert_eq!(library.entries().count(), 1);
    library.remove("owner/name", &|_| false).unwrap();
    assert!(!world.path("models/.removed").exists());
}

#[test]
fn a_snapshot_goes_with_the_blobs_that_no_other_one_has() {
    let world = World::new();
    let weights = shard("model.norm.weight", 8);
    let config = config().to_string().into_bytes();
    let shared =
        [("model.safetensors", "w", weights.clone()), ("tokenizer.json", "t", tokenizer())];
    let snapshot = |commit, blob: &str, content: &[u8]| {
        let own = [("config.json", blob, content.to_owned())];
        world.snapshot("models--o--n", commit, &[&shared[..], &own[..]].concat());
    };
    snapshot(MAIN, "c1", &config);
    snapshot(OLD, "c2", &config);
    world.reference("models--o--n", "main", MAIN);
    world.reference("models--o--n", "tags/v1", OLD);
    let mut library = world.library();
    let removed = library.remove("o/n@22222222", &|_| false).unwrap();
    assert_eq!(removed.freed_bytes, config.len() as u64);
    let blob = |name: &str| world.path("hub/models--o--n/blobs").join(name).exists();
    assert_eq!(["w", "t", "c1", "c2"].map(blob), [true, true, true, false]);
    assert!(!world.path("hub/models--o--n/refs/tags/v1").exists());
    assert_eq!(world.listed(), ["o/n ready"]);
    library.remove("o/n", &|_| false).unwrap();
    assert!(!world.path("hub/models--o--n").exists());
    assert_eq!(world.listed(), Vec::<String>::new());
}

#[test]
fn what_is_being_fetched_into_a_repository_stays_when_its_snapshot_goes() {
    let world = World::new();
    let all = blobs("a");
    world.snapshot("models--o--n", MAIN, &borrowed(&all));
    let fetched = world.path("hub/models--o--n/blobs/abc.incomplete");
    fs::write(&fetched, "half").unwrap();
    world.library().remove("o/n", &|_| false).unwrap();
    assert!(fetched.exists());
    assert_eq!(world.listed(), Vec::<String>::new());
}

#[test]
fn links_are_never_followed_out_of_a_place() {
    let world = World::new();
    let outside = world.path("outside");
    write(&outside, &files());
    link(&outside, &world.path("models/linked"));
    let mut library = world.library();
    assert_eq!(library.remove("linked", &|_| false).unwrap().freed_bytes, 0);
    assert!(!world.path("models/linked").exists());
    assert!(outside.join("model.safetensors").exists(), "only the link is ours");

    let owner = world.path("elsewhere");
    write(&owner.join("name"), &files());
    link(&owner, &world.path("models/owner"));
    let mut library = world.library();
    let error = library.remove("owner/name", &|_| false).unwrap_err();
    assert!(error.message().contains("outside"), "{error}");

    let all = blobs("a");
    let snapshot = world.snapshot("models--o--n", MAIN, &borrowed(&all));
    link(&outside.join("tokenizer.json"), &snapshot.join("tokenizer.json"));
    world.library().remove("o/n", &|_| false).unwrap();
    assert!(outside.join("tokenizer.json").exists(), "what a link leads to outside is not ours");
    assert!(owner.join("name/config.json").exists());
}
