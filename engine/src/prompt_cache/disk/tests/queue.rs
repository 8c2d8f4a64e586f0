//! The engine thread never waits for the disk, and what waits for the disk is bounded.

use std::sync::mpsc;

use super::scripted::{Fate, Kind, ScriptedFiles};
use super::*;

/// A tier whose disk does nothing until the sender is dropped.
fn stuck(config: &DiskConfig) -> (DiskTier, mpsc::Sender<()>) {
    drop(open(config, &Clock::monotonic()));
    let (sender, receiver) = mpsc::channel::<()>();
    let files = ScriptedFiles::new(move |kind, _| {
        if kind == Kind::Create {
            let _ = receiver.recv();
        }
        Fate::Done
    });
    let tier = DiskTier::open_with(config.clone(), IDENTITY, Clock::monotonic(), files).unwrap();
    (tier, sender)
}

fn tensor_bytes(tokens: &[u32]) -> u64 {
    content(tokens).1.iter().map(|tensor| tensor.bytes.len() as u64).sum()
}

#[test]
fn entries_are_handed_over_while_the_disk_is_stuck_until_the_queue_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let queue_bytes = tensor_bytes(&[0, 7]) + tensor_bytes(&[1, 7]) + tensor_bytes(&[2, 7]);
    let (mut tier, gate) = stuck(&DiskConfig { queue_bytes, ..config(folder.path()) });
    let ids: Vec<DiskId> = (0..3).map(|token| save(&mut tier, &[token, 7]).unwrap()).collect();
    assert_eq!(tier.stats().queued_bytes, queue_bytes);
    assert!(save(&mut tier, &[3, 7]).is_none(), "the queue is full");
    assert!(!tier.flush(Duration::ZERO));
    assert!(ids.iter().all(|id| tier.contains(*id)));
    assert_eq!(tier.find(&[0, 7, 7], 0), None);
    drop(gate);
    assert!(tier.flush(PATIENCE));
    assert_eq!((tier.stats().queued_bytes, tier.stats().saved), (0, 3));
    check_all(&mut tier);
    store(&mut tier, &[3, 7]);
}

#[test]
fn what_waits_is_of_this_day_already() {
    let folder = tempfile::tempdir().unwrap();
    let day_limit_bytes = Some(file_bytes(&[0, 7]) + file_bytes(&[1, 7]));
    let (mut tier, gate) = stuck(&DiskConfig { day_limit_bytes, ..config(folder.path()) });
    assert!(save(&mut tier, &[0, 7]).is_some() && save(&mut tier, &[1, 7]).is_some());
    assert_eq!(tier.stats().written_bytes, 0);
    assert!(save(&mut tier, &[2, 7]).is_none());
    drop(gate);
    assert!(tier.flush(PATIENCE));
    assert_eq!((tier.stats().saved, tier.stats().failed), (2, 0));
}

#[test]
fn an_entry_larger_than_the_queue_comes_as_the_disk_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_, tensors) = content(&[0, 7]);
    let queue_bytes = tensors[0].bytes.len() as u64 + tensors[1].bytes.len() as u64;
    let (mut tier, gate) = stuck(&DiskConfig { queue_bytes, ..config(folder.path()) });
    let mut saving = tier.save(content(&[0, 7]).0).unwrap().unwrap();
    let id = saving.id();
    saving.tensor(tensors[0].clone()).unwrap();
    saving.tensor(tensors[1].clone()).unwrap();
    assert!(!saving.ready());
    assert_eq!(saving.tensor(tensors[2].clone()).unwrap_err().code(), Code::QueueFull);
    assert!(save(&mut tier, &[1, 7]).is_none(), "the queue is set aside for what came first");
    drop(gate);
    assert!(tier.flush(PATIENCE));
    assert!(saving.ready());
    saving.tensor(tensors[2].clone()).unwrap();
    saving.finish().unwrap();
    assert!(tier.flush(PATIENCE));
    check_entry(&mut tier, id);
    assert!(tier.save(content(&[1, 7]).0).unwrap().is_some(), "the queue is free again");
}

#[test]
fn one_tensor_larger_than_the_queue_goes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&DiskConfig { queue_bytes: 1, ..config(folder.path()) }, &Clock::manual());
    let (manifest, tensors) = content(&[0, 7]);
    let mut saving = tier.save(manifest).unwrap().unwrap();
    let id = saving.id();
    for tensor in tensors {
        assert!(saving.ready());
        saving.tensor(tensor).unwrap();
        assert!(tier.flush(PATIENCE));
    }
    saving.finish().unwrap();
    assert!(tier.flush(PATIENCE));
    check_entry(&mut tier, id);
}

#[test]
fn two_entries_may_be_handed_over_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::monotonic());
    let (one, ones) = content(&[1, 7]);
    let (two, twos) = content(&[2, 7]);
    let mut one = tier.save(one).unwrap().unwrap();
    let mut two = tier.save(two).unwrap().unwrap();
    for (left, right) in ones.into_iter().zip(twos) {
        one.tensor(left).unwrap();
        two.tensor(right).unwrap();
    }
    two.finish().unwrap();
    one.finish().unwrap();
    assert!(tier.flush(PATIENCE));
    assert_eq!(tier.stats().saved, 2);
    check_all(&mut tier);
}

#[test]
fn a_tier_that_is_dropped_leaves_whole_entries_only() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let (mut tier, gate) = stuck(&config);
    (0..3).for_each(|token| assert!(save(&mut tier, &[token, 7]).is_some()));
    // The board is closed before the disk goes on, so most of what waits is not written.
    tier.board.close();
    drop(gate);
    drop(tier);
    assert_eq!(unfinished_in(folder.path()), 0);
    let mut tier = open(&config, &Clock::monotonic());
    check_all(&mut tier);
    assert!(tier.stats().entries < 3);
}
