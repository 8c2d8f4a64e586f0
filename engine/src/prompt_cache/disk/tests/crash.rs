//! A process that is killed at any point leaves a folder in which every entry is whole or gone.

use std::collections::HashMap;

use super::children::{Task, Worker};
use super::*;

/// Room for a few entries, so that some go while others come.
const SMALL: u64 = 400_000;

fn task(folder: &Path, seed: u64, max_bytes: u64) -> Task {
    let (folder, identity) = (folder.to_owned(), IDENTITY.to_owned());
    Task { folder, identity, max_bytes, seed, entries: 6, hangs_at: None }
}

/// What killed processes said of entries.
#[derive(Default)]
struct Told {
    saved: Vec<DiskId>,
    /// Whether they are pinned, where that is certain.
    pinned: HashMap<DiskId, bool>,
}

impl Told {
    /// Takes note; says whether the process hangs.
    fn hear(&mut self, said: &str) -> bool {
        let words: Vec<&str> = said.split(' ').collect();
        match words[..] {
            ["saved", id] => self.saved.push(id.parse().unwrap()),
            ["pins", id] => drop(self.pinned.remove(&id.parse().unwrap())),
            ["pinned", id, pinned] => {
                self.pinned.insert(id.parse().unwrap(), pinned.parse().unwrap());
            }
            _ => return said == "hangs",
        }
        false
    }
}

/// Opens the folder that a killed process left, checks all of it, and says how many bytes it wore.
fn check_folder(folder: &Path, max_bytes: u64, told: &Told) -> u64 {
    let config = DiskConfig { max_bytes, ..config(folder) };
    let mut tier = open(&config, &Clock::monotonic());
    assert_eq!(unfinished_in(folder), 0, "an unfinished file was left");
    check_all(&mut tier);
    if max_bytes > SMALL {
        let lost = told.saved.iter().find(|id| !tier.contains(**id));
        assert_eq!(lost, None, "an entry that was told as saved is gone");
    }
    for entry in tier.entries() {
        let told = told.pinned.get(&entry.id);
        assert!(told.is_none_or(|pinned| *pinned == entry.pinned), "{entry:?}: {told:?}");
    }
    let pinned = tier.entries().filter(|entry| entry.pinned).count();
    assert_eq!(pinned, pins_in(folder).len(), "a pin of no entry was left");
    let stats = tier.stats();
    assert!(stats.bytes <= max_bytes);
    assert!(stats.written_bytes >= stats.bytes, "{stats:?}");
    stats.written_bytes
}

#[test]
fn a_process_killed_in_the_middle_of_any_operation_leaves_whole_entries() {
    for max_bytes in [SMALL, 1 << 30] {
        let folder = tempfile::tempdir().unwrap();
        let (mut told, mut written) = (Told::default(), 0);
        for seed in 0..25 {
            let mut random = StdRng::seed_from_u64(seed);
            let hangs_at = Some((random.random_range(1..110), random.random_range(0..50_000)));
            let task = Task { hangs_at, ..task(folder.path(), seed, max_bytes) };
            let mut worker = Worker::start(&task);
            let mut hung = false;
            while let Some(said) = worker.hear() {
                hung = told.hear(&said);
                if hung {
                    break;
                }
            }
            assert!(hung, "{hangs_at:?} is past the end");
            worker.kill();
            let after = check_folder(folder.path(), max_bytes, &told);
            assert!(after >= written, "the wear went back at {hangs_at:?}");
            written = after;
        }
    }
}

#[test]
fn a_process_killed_at_any_time_leaves_whole_entries() {
    let folder = tempfile::tempdir().unwrap();
    let mut told = Told::default();
    for seed in 100..115 {
        let task = Task { entries: 1_000, ..task(folder.path(), seed, 1 << 30) };
        let mut worker = Worker::start(&task);
        for _ in 0..seed % 4 + 1 {
            told.hear(&worker.hear().unwrap());
        }
        // Meanwhile it goes on: where it is now is anybody's guess.
        told.pinned.clear();
        worker.kill();
        check_folder(folder.path(), 1 << 30, &told);
    }
}
