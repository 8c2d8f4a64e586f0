//! Which directories of the places may hold a model.
//!
//! ```text
//! <models>/<owner>/<name>/        ours: downloads, and what was put there
//! <models>/<name>/                the same without an owner: imports
//! <cache>/models--<owner>--<name>/refs/<revision>            the commit of a branch or tag
//! <cache>/models--<owner>--<name>/snapshots/<commit>/<file>  a link to ../../blobs/<digest>
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::entry::Origin;
use crate::hub::manifest::Manifest;
use crate::hub::places::Places;

/// What the names of folders begin with in caches of Hugging Face's tools.
const REPOSITORY: &str = "models--";
/// The revision whose snapshot bears the repository's plain name.
const MAIN: &str = "main";
/// Bytes of a file that names a commit at most.
const REF_BYTES_MAX: u64 = 256;
/// Characters of a commit that tell snapshots apart.
const COMMIT_CHARS: usize = 8;

/// A directory that may hold a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: String,
    pub(super) directory: PathBuf,
    pub(super) origin: Origin,
    pub(super) commit: Option<String>,
}

/// All candidates, each with an id of its own: ours keep theirs, what a cache has too is called
/// `<id>@hugging-face`.
pub(super) fn in_places(places: &Places) -> Vec<Candidate> {
    let mut candidates = in_own_folder(&places.models);
    let mut ids: BTreeSet<String> = candidates.iter().map(|own| own.id.clone()).collect();
    for mut cached in places.hugging_face.iter().flat_map(|cache| in_cache(cache)) {
        if ids.contains(&cached.id) {
            cached.id.push_str("@hugging-face");
        }
        if ids.insert(cached.id.clone()) {
            candidates.push(cached);
        }
    }
    candidates
}

fn in_own_folder(models: &Path) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (name, directory) in folders(models) {
        if holds_model(&directory) {
            candidates.push(own(name, directory));
            continue;
        }
        for (inner, directory) in folders(&directory) {
            // Where models without an owner lie, whose names need none.
            let id = if name == "_" { inner } else { format!("{name}/{inner}") };
            candidates.push(own(id, directory));
        }
    }
    candidates
}

fn own(id: String, directory: PathBuf) -> Candidate {
    let manifest = Manifest::read(&directory).ok().flatten();
    let commit = manifest.map(|manifest| manifest.commit.as_str().to_owned());
    Candidate { id, directory, origin: Origin::Own, commit }
}

fn in_cache(cache: &Path) -> Vec<Candidate> {
    let repositories = folders(cache).into_iter().filter_map(|(name, folder)| {
        let id = name.strip_prefix(REPOSITORY)?.replacen("--", "/", 1);
        Some(snapshots(&id, &folder))
    });
    repositories.flatten().collect()
}

/// The snapshots of a repository. The one of `main` has its name; where nothing says which that is, the only one,
/// or the one that changed last. The others have their commit behind it.
fn snapshots(id: &str, repository: &Path) -> Vec<Candidate> {
    let mut found: BTreeMap<String, PathBuf> =
        folders(&repository.join("snapshots")).into_iter().collect();
    let plain = plain_commit(repository, &found);
    let plain = plain.and_then(|commit| found.remove_entry(&commit));
    let candidate = |id: String, (commit, directory): (String, PathBuf)| Candidate {
        id,
        directory,
        origin: Origin::HuggingFace,
        commit: Some(commit),
    };
    let others = found.into_iter().map(|snapshot| {
        let short: String = snapshot.0.chars().take(COMMIT_CHARS).collect();
        candidate(format!("{id}@{short}"), snapshot)
    });
    plain.into_iter().map(|snapshot| candidate(id.to_owned(), snapshot)).chain(others).collect()
}

fn plain_commit(repository: &Path, snapshots: &BTreeMap<String, PathBuf>) -> Option<String> {
    let main = read_ref(&repository.join("refs").join(MAIN));
    let main = main.filter(|commit| snapshots.contains_key(commit));
    main.or_else(|| {
        let changed = |folder: &PathBuf| fs::metadata(folder).and_then(|it| it.modified()).ok();
        let last = snapshots.iter().max_by_key(|(_, folder)| changed(folder));
        last.map(|(commit, _)| commit.clone())
    })
}

/// The commit that a file under `refs/` names.
pub(super) fn read_ref(path: &Path) -> Option<String> {
    let short = fs::metadata(path).ok().filter(|it| it.is_file() && it.len() <= REF_BYTES_MAX);
    let text = short.and_then(|_| fs::read_to_string(path).ok())?;
    Some(text.trim().to_owned())
}

/// Whether a directory holds files of a model, rather than folders that do.
fn holds_model(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    let names = entries.flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| {
        let name = name.to_string_lossy();
        name == "config.json" || is_weights(&name)
    })
}

/// Whether a file of that name belongs to a checkpoint's weights.
pub(super) fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

/// The folders in `folder`, links to folders too, in the order of their names; none whose name says that
/// it is being made or removed, and none that is no text.
fn folders(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let named = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        (is_settled(&name) && entry.path().is_dir()).then(|| (name, entry.path()))
    });
    let mut folders: Vec<_> = named.collect();
    folders.sort();
    folders
}

fn is_settled(name: &str) -> bool {
    !name.starts_with('.') && !name.ends_with(".partial") && !name.ends_with(".replaced")
}
