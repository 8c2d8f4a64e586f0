//! A process that is killed at any point leaves a folder in which every entry is whole or gone.

use super::children::{Task, Worker};
use super::*;

/// Room for a few entries, so that some go while others come.
const SMALL: u64 = 400_000;

fn task(folder: &Path, seed: u64, max_bytes: u64) -> Task {
    let (folder, identity) = (folder.to_owned(), IDENTITY.to_owned());
    Task { folder, identity, max_bytes, seed, entries: 6, hangs_at: None }
}

/// Opens the folder that a killed process left, checks all of it, and says how many bytes it wore.
fn check_folder(folder: &Path, max_bytes: u64, saved: &[DiskId]) -> u64 {
    let config = DiskConfig { max_bytes, ..config(folder) };
    let mut tier = open(&config, &Clock::monotonic());
    assert_eq!(unfinished_in(folder), 0, "an unfinished file was left");
    check_all(&mut tier);
    if max_bytes > SMALL {
        let lost = saved.iter().find(|id| !tier.contains(**id));
        assert_eq!(lost, None, "an entry that was told as saved is gone");
    }
    let stats = tier.stats();
    assert!(stats.bytes <= max_bytes);
    assert!(stats.written_bytes >= stats.bytes, "{stats:?}");
    stats.written_bytes
}

fn saved_id(said: &str) -> Option<DiskId> {
    said.strip_prefix("saved ").map(|id| id.parse().unwrap())
}

#[test]
fn a_process_killed_in_the_middle_of_any_operation_leaves_whole_entries() {
    for max_bytes in [SMALL, 1 << 30] {
        let folder = tempfile::tempdir().unwrap();
        let (mut saved, mut written) = (Vec::new(), 0);
        for seed in 0..25 {
            let mut random = StdRng::seed_from_u64(seed);
            let hangs_at = Some((random.random_range(1..110), random.random_range(0..50_000)));
            let task = Task { hangs_at, ..task(folder.path(), seed, max_bytes) };
            let mut worker = Worker::start(&task);
            let mut hung = false;
            while let Some(said) = worker.hear() {
                saved.extend(saved_id(&said));
                if said == "hangs" {
                    hung = true;
                    break;
                }
            }
            assert!(hung, "{hangs_at:?} is past the end");
            worker.kill();
            let after = check_folder(folder.path(), max_bytes, &saved);
            assert!(after >= written, "the wear went back at {hangs_at:?}");
            written = after;
        }
    }
}

#[test]
fn a_process_killed_at_any_time_leaves_whole_entries() {
    let folder = tempfile::tempdir().unwrap();
    let mut saved = Vec::new();
    for seed in 100..115 {
        let task = Task { entries: 1_000, ..task(folder.path(), seed, 1 << 30) };
        let mut worker = Worker::start(&task);
        for _ in 0..seed % 4 + 1 {
            saved.extend(saved_id(&worker.hear().unwrap()));
        }
        // Meanwhile it goes on: where it is now is anybody's guess.
        worker.kill();
        check_folder(folder.path(), 1 << 30, &saved);
    }
}
