//! Processes that share a folder.

use super::children::{Task, Worker};
use super::*;

const OTHER: &str = "badc0de5badc0de5";

#[test]
fn processes_on_one_folder_keep_its_cap_and_its_account_and_harm_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let max_bytes = 900_000;
    let start = |(seed, identity): (u64, &str)| {
        let (folder, identity) = (folder.path().to_owned(), identity.to_owned());
        Worker::start(&Task { folder, identity, max_bytes, seed, entries: 30, hangs_at: None })
    };
    let workers: Vec<Worker> = [(1, IDENTITY), (2, IDENTITY), (3, OTHER)].map(start).into();
    let mut written = 0;
    for mut worker in workers {
        while let Some(said) = worker.hear() {
            written += said.strip_prefix("wrote ").map_or(0, |bytes| bytes.parse::<u64>().unwrap());
        }
        worker.join();
    }
    assert!(written > max_bytes, "nothing had to go");
    let config = DiskConfig { max_bytes, ..config(folder.path()) };
    let mut entries = 0;
    for identity in [IDENTITY, OTHER] {
        let mut tier = DiskTier::open(config.clone(), identity, Clock::monotonic()).unwrap();
        check_all(&mut tier);
        let stats = tier.stats();
        assert!(stats.bytes <= max_bytes && stats.evicted == 0, "{stats:?}");
        assert_eq!(stats.written_bytes, written, "bytes were lost in the account");
        entries += stats.entries;
    }
    assert_eq!(entries, files_in(folder.path()).len());
    for pin in pins_in(folder.path()) {
        assert!(pin.with_extension("slipcache").exists(), "{pin:?} pins nothing");
    }
}

#[test]
fn what_another_process_is_writing_is_left_alone_until_that_process_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, identity) = (folder.path().to_owned(), IDENTITY.to_owned());
    // Beyond the account and the file's creation: in the middle of its first tensor, with no lock held.
    let hangs_at = Some((12, 1_000));
    let max_bytes = 1 << 30;
    let task = Task { folder: folder.clone(), identity, max_bytes, seed: 5, entries: 1, hangs_at };
    let mut worker = Worker::start(&task);
    assert_eq!(worker.hear().as_deref(), Some("hangs"));
    assert_eq!(unfinished_in(&folder), 1);
    let mut tier = open(&config(&folder), &Clock::monotonic());
    assert_eq!(unfinished_in(&folder), 1, "a living process lost its file");
    store(&mut tier, &[1, 1]);
    assert_eq!(tier.stats().files, 2);
    drop(tier);
    worker.kill();
    let mut tier = open(&config(&folder), &Clock::monotonic());
    assert_eq!(unfinished_in(&folder), 0);
    check_all(&mut tier);
}
