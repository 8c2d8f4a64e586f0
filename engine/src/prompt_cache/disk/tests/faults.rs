//! A disk that fails: nothing is corrupted, what is there still serves, and nothing is tried again.

use std::collections::HashMap;
use std::io::ErrorKind;

use parking_lot::Mutex;

use super::scripted::{Fate, Kind, ScriptedFiles};
use super::*;

fn open_on(config: &DiskConfig, files: Arc<ScriptedFiles>) -> DiskTier {
    DiskTier::open_with(config.clone(), IDENTITY, Clock::monotonic(), files).unwrap()
}

/// A tier on a disk with room for `bytes` more.
fn open_on_small_disk(config: &DiskConfig, bytes: usize) -> DiskTier {
    let mut left = bytes;
    let files = ScriptedFiles::new(move |kind, _| match kind {
        Kind::Write(bytes) if bytes > left => Fate::Fails(left, ErrorKind::StorageFull),
        Kind::Write(bytes) => {
            left -= bytes;
            Fate::Done
        }
        _ => Fate::Done,
    });
    open_on(config, files)
}

#[test]
fn a_full_disk_makes_the_tier_read_only_and_what_is_there_still_serves() {
    for_seeds(0..40, "faults", |_, random| {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let mut before = open(&config, &Clock::monotonic());
        let kept = store(&mut before, &[1, 1]);
        drop(before);
        let mut tier = open_on_small_disk(&config, random.random_range(0..400_000));
        let mut token = 100;
        while tier.stats().read_only.is_none() {
            // Two at once: the second is lost with the first.
            save(&mut tier, &[token]);
            save(&mut tier, &[token, 2]);
            assert!(tier.flush(PATIENCE));
            token += 1;
            assert!(token < 200, "the disk is never full");
        }
        let stats = tier.stats();
        assert!(stats.failed > 0 && stats.queued_bytes == 0, "{stats:?}");
        assert!(save(&mut tier, &[token, 3]).is_none());
        assert_eq!(unfinished_in(folder.path()), 0);
        check_entry(&mut tier, kept);
        check_all(&mut tier);
        let entries = tier.stats().entries;
        drop(tier);
        // A restart tries again.
        let mut tier = open(&config, &Clock::monotonic());
        assert_eq!(tier.stats().entries, entries);
        store(&mut tier, &[token, 4]);
        check_all(&mut tier);
        assert!(tier.stats().written_bytes >= tier.stats().bytes);
    });
}

#[test]
fn a_removal_works_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let id = store(&mut open(&config, &Clock::monotonic()), &[1, 1]);
    let mut tier = open_on_small_disk(&config, 0);
    save(&mut tier, &[2, 2]).unwrap();
    assert!(tier.flush(PATIENCE));
    assert!(tier.stats().read_only.is_some());
    assert!(tier.remove(id));
    assert!(tier.flush(PATIENCE));
    assert_eq!(files_in(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn whichever_operation_fails_every_entry_is_whole_or_gone() {
    let kinds = [ErrorKind::StorageFull, ErrorKind::NotFound, ErrorKind::Other];
    for (fails_at, kind) in (0..60).flat_map(|at| kinds.map(|kind| (at, kind))) {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        // What opening does is made here, so that opening does not fail.
        drop(open(&config, &Clock::monotonic()));
        let mut operation = 0;
        let files = ScriptedFiles::new(move |_, _| {
            operation += 1;
            if operation == fails_at + 1 { Fate::Fails(usize::MAX, kind) } else { Fate::Done }
        });
        let mut tier = open_on(&config, files);
        for token in 0..3 {
            save(&mut tier, &[token, 7]);
        }
        assert!(tier.flush(PATIENCE));
        let ids: Vec<DiskId> = tier.entries().map(|entry| entry.id).collect();
        ids.iter().for_each(|id| check_entry(&mut tier, *id));
        let stats = tier.stats();
        assert!(stats.saved + stats.failed <= 3);
        assert_eq!((stats.entries as u64, stats.queued_bytes), (stats.saved, 0));
        drop(tier);
        let mut tier = open(&config, &Clock::monotonic());
        assert_eq!(unfinished_in(folder.path()), 0, "operation {fails_at}");
        assert!(ids.iter().all(|id| tier.contains(*id)), "a saved entry is gone");
        assert!(tier.stats().written_bytes >= tier.stats().bytes);
        check_all(&mut tier);
    }
}

#[test]
fn a_folder_that_somebody_removed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("prompts");
    let mut tier = open(&config(&root), &Clock::monotonic());
    let gone = store(&mut tier, &[1, 1]);
    std::fs::remove_dir_all(&root).unwrap();
    assert!(tier.restore(gone).is_err());
    assert_eq!(tier.find(&[1, 1, 1], 0), None);
    store(&mut tier, &[2, 2]);
    check_all(&mut tier);
}

/// What a disk would have kept if it lost everything that was not flushed.
#[derive(Default)]
struct Unflushed {
    writes: HashMap<PathBuf, usize>,
    renamed_into: Vec<PathBuf>,
    renames: usize,
}

#[test]
fn a_file_is_flushed_before_it_gets_its_name_and_its_folder_after() {
    let folder = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Unflushed::default()));
    let noted = Arc::clone(&seen);
    let files = ScriptedFiles::new(move |kind, path| {
        let mut seen = noted.lock();
        match kind {
            Kind::Write(_) => *seen.writes.entry(path.to_owned()).or_default() += 1,
            Kind::Sync => drop(seen.writes.remove(path)),
            Kind::Rename => {
                assert!(!seen.writes.contains_key(path), "{} is not flushed", path.display());
                seen.renamed_into.push(path.parent().unwrap().to_owned());
                seen.renames += 1;
            }
            Kind::SyncFolder => seen.renamed_into.retain(|folder| folder != path),
            _ => {}
        }
        Fate::Done
    });
    let mut tier = open_on(&config(folder.path()), files);
    for token in 0..3 {
        store(&mut tier, &[token, 7]);
        let seen = seen.lock();
        assert_eq!(seen.renamed_into, Vec::<PathBuf>::new());
        // One for the account, and one for the entry.
        assert_eq!((seen.writes.len(), seen.renames), (0, 2 * (token as usize + 1)));
    }
}

#[test]
fn a_tier_says_once_that_it_is_read_only() {
    let board = Board::new(usage::Usage::default(), folder::Total::default(), 1);
    assert!(board.set_read_only("the disk is full"));
    assert!(!board.set_read_only("the disk is on fire"));
    assert_eq!(board.view().read_only.as_deref(), Some("the disk is full"));
}

#[test]
fn a_writer_that_panics_leaves_a_tier_that_serves() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let id = store(&mut open(&config, &Clock::monotonic()), &[1, 1]);
    let files = ScriptedFiles::new(|kind, _| match kind {
        Kind::Write(bytes) if bytes > 1000 => panic!("planted"),
        _ => Fate::Done,
    });
    let mut tier = open_on(&config, files);
    save(&mut tier, &[2, 2]).unwrap();
    assert!(!tier.flush(PATIENCE), "nobody waits for a writer that is gone");
    assert!(tier.stats().read_only.is_some());
    assert!(save(&mut tier, &[3, 3]).is_none());
    check_entry(&mut tier, id);
}
