//! Tests of the tier as a whole, on real folders.

mod children;
mod crash;
mod damage;
mod faults;
mod pins;
mod queue;
mod restore;
mod room;
mod scripted;
mod shared;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::*;

const IDENTITY: &str = "00c0ffee00c0ffee";
/// Far longer than any flush takes; no test waits for it unless it fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn config(folder: &Path) -> DiskConfig {
    let folder = folder.to_owned();
    DiskConfig { folder, max_bytes: 1 << 30, day_limit_bytes: None, queue_bytes: 1 << 30 }
}

fn open(config: &DiskConfig, clock: &Clock) -> DiskTier {
    DiskTier::open(config.clone(), IDENTITY, clock.clone()).unwrap()
}

/// A prompt and what belongs to it: all of it follows from its tokens, so it can be told from any other.
fn content(tokens: &[u32]) -> (Manifest, Vec<Tensor>) {
    let seed = tokens.iter().fold(7, |seed: u64, token| seed * 31 + u64::from(*token));
    let mut random = StdRng::seed_from_u64(seed);
    let tensors: Vec<Tensor> = (0..3)
        .map(|_| {
            let mut bytes = vec![0; random.random_range(0..40_000)];
            random.fill(&mut bytes[..]);
            Tensor { dtype: "uint8".to_owned(), shape: vec![bytes.len()], bytes }
        })
        .collect();
    let manifest = Manifest {
        tokens: tokens.to_vec(),
        state: json!({ "offset": tokens.len(), "seed": seed }),
        can_trim: seed % 2 == 0,
        origin: Origin::Finished,
        tensors: tensors.iter().map(Tensor::spec).collect(),
    };
    (manifest, tensors)
}

fn file_bytes(tokens: &[u32]) -> u64 {
    format::Layout::of_manifest(&content(tokens).0, IDENTITY).unwrap().file_bytes
}

/// Hands a whole entry over, if it is admitted.
fn save(tier: &mut DiskTier, tokens: &[u32]) -> Option<DiskId> {
    let (manifest, tensors) = content(tokens);
    let mut saving = tier.save(manifest).unwrap()?;
    let id = saving.id();
    tensors.into_iter().for_each(|tensor| saving.tensor(tensor).unwrap());
    saving.finish().unwrap();
    Some(id)
}

/// Saves an entry and waits for it.
fn store(tier: &mut DiskTier, tokens: &[u32]) -> DiskId {
    let id = save(tier, tokens).expect("the entry is admitted");
    assert!(tier.flush(PATIENCE));
    assert!(tier.entries().any(|entry| entry.id == id), "{:?}", tier.stats());
    id
}

/// What a reader hands out until it ends or fails.
fn read(reader: &mut Reader) -> (Vec<Tensor>, Option<Error>) {
    let mut tensors = Vec::new();
    loop {
        match reader.next_tensor() {
            Ok(Some(tensor)) => tensors.push(tensor),
            Ok(None) => return (tensors, None),
            Err(error) => return (tensors, Some(error)),
        }
    }
}

/// Holds everything of an entry against what its tokens say it must be.
#[track_caller]
fn check_entry(tier: &mut DiskTier, id: DiskId) {
    let mut reader = tier.restore(id).unwrap();
    let (manifest, tensors) = content(&reader.manifest().tokens.clone());
    assert_eq!(*reader.manifest(), manifest);
    assert_eq!(read(&mut reader), (tensors, None));
}

/// Holds every entry against its tokens, and the figures against the folder.
#[track_caller]
fn check_all(tier: &mut DiskTier) {
    let ids: Vec<DiskId> = tier.entries().map(|entry| entry.id).collect();
    ids.iter().for_each(|id| check_entry(tier, *id));
    assert!(tier.flush(PATIENCE));
    let stats = tier.stats();
    let files = files_in(&tier.config.folder);
    let bytes: u64 = files.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!((stats.files, stats.bytes), (files.len(), bytes));
    assert_eq!((stats.entries, stats.dropped), (ids.len(), 0), "{stats:?}");
}

/// The files of entries, whole or not, of every identity.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let (files, _) = everything_in(folder);
    files
}

/// The files that pin entries, of every identity.
fn pins_in(folder: &Path) -> Vec<PathBuf> {
    let (_, pins) = everything_in(folder);
    pins
}

fn everything_in(folder: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let folders = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir());
    let is_pin = |path: &PathBuf| path.extension().is_some_and(|end| end == "pin");
    folders
        .flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()))
        .partition(|path| !is_pin(path))
}

/// Whether an entry is pinned, as the tier has it.
fn is_pinned(tier: &mut DiskTier, id: DiskId) -> bool {
    tier.entry(id).is_some_and(|entry| entry.pinned)
}

/// Pins or unpins an entry and waits for it.
fn pin(tier: &mut DiskTier, id: DiskId, pinned: bool) {
    assert!(tier.pin(id, pinned));
    assert!(tier.flush(PATIENCE));
}

fn unfinished_in(folder: &Path) -> usize {
    files_in(folder).iter().filter(|path| path.extension().is_some_and(|end| end == "tmp")).count()
}

/// The seeds of a test, or the one that `SLIPSTREAM_SEED` asks for; a failing one is named.
fn for_seeds(seeds: std::ops::Range<u64>, test: &str, run: impl Fn(u64, &mut StdRng)) {
    let replay = std::env::var("SLIPSTREAM_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in replay.map_or(seeds, |seed: u64| seed..seed + 1) {
        let run = || run(seed, &mut StdRng::seed_from_u64(seed));
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            eprintln!(
                "replay: SLIPSTREAM_SEED={seed} cargo test prompt_cache::disk::tests::{test}"
            );
            std::panic::resume_unwind(panic);
        }
    }
}
