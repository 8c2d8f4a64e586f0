//! Entries that stay while others go, whatever becomes of the process.

use super::*;

const OTHER: &str = "badc0de5badc0de5";
const SECOND: Duration = Duration::from_secs(1);

/// A tier with room for the entries `[token, 7]` of `tokens`.
fn open_for(folder: &Path, clock: &Clock, tokens: &[u32]) -> DiskTier {
    let max_bytes = tokens.iter().map(|token| file_bytes(&[*token, 7])).sum();
    open(&DiskConfig { max_bytes, ..config(folder) }, clock)
}

fn store_each(tier: &mut DiskTier, clock: &Clock, tokens: &[u32]) -> Vec<DiskId> {
    let mut store_next = |token: &u32| {
        clock.advance(SECOND);
        store(tier, &[*token, 7])
    };
    tokens.iter().map(&mut store_next).collect()
}

fn left(tier: &mut DiskTier) -> Vec<u32> {
    let mut left: Vec<u32> = tier.entries().map(|entry| entry.tokens[0]).collect();
    left.sort_unstable();
    left
}

/// Entries `[token, 7]` whose files are no smaller than that of `[0, 7]`.
fn small() -> Vec<u32> {
    (1..100).filter(|token| file_bytes(&[*token, 7]) <= file_bytes(&[0, 7])).take(3).collect()
}

#[test]
fn what_is_pinned_stays_when_room_is_needed_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, few) = (Clock::manual(), small());
    let mut tier = open_for(folder.path(), &clock, &[0, few[0]]);
    let id = store_each(&mut tier, &clock, &[0])[0];
    pin(&mut tier, id, true);
    for restarted in [false, true] {
        if restarted {
            drop(tier);
            tier = open_for(folder.path(), &clock, &[0, few[0]]);
            assert!(is_pinned(&mut tier, id));
        }
        for token in &few {
            clock.advance(SECOND);
            save(&mut tier, &[*token, 7]);
            assert!(tier.flush(PATIENCE));
        }
        assert!(tier.contains(id), "{:?}", left(&mut tier));
    }
    check_all(&mut tier);
}

#[test]
fn an_unpinned_entry_goes_by_its_last_use_again_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let (config, clock) = (config(folder.path()), Clock::manual());
    let mut tier = open(&config, &clock);
    let id = store(&mut tier, &[0, 7]);
    pin(&mut tier, id, true);
    pin(&mut tier, id, true);
    assert_eq!(pins_in(folder.path()).len(), 1);
    pin(&mut tier, id, false);
    pin(&mut tier, id, false);
    assert_eq!(pins_in(folder.path()).len(), 0);
    drop(tier);
    assert!(!is_pinned(&mut open(&config, &clock), id));
}

#[test]
fn nothing_goes_for_an_entry_that_finds_no_room_beside_the_pinned_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens: Vec<u32> = (0..20).collect();
    tokens.sort_by_key(|token| file_bytes(&[*token, 7]));
    let [smallest, .., large, largest] = tokens[..] else { unreachable!() };
    let clock = Clock::manual();
    let mut tier = open_for(folder.path(), &clock, &[smallest, large]);
    let ids = store_each(&mut tier, &clock, &[smallest, large]);
    pin(&mut tier, ids[1], true);
    save(&mut tier, &[largest, 7]).expect("the engine thread does not look at files");
    assert!(tier.flush(PATIENCE));
    let stats = tier.stats();
    assert_eq!((stats.failed, stats.evicted, stats.entries), (1, 0, 2), "{stats:?}");
    assert_eq!(stats.read_only, None);
}

#[test]
fn of_a_folder_whose_cap_was_lowered_pinned_entries_go_last() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let mut tier = open(&config(folder.path()), &clock);
    let ids = store_each(&mut tier, &clock, &[0, 1, 2, 3]);
    pin(&mut tier, ids[0], true);
    pin(&mut tier, ids[2], true);
    drop(tier);
    assert_eq!(left(&mut open_for(folder.path(), &clock, &[0, 2, 3])), [0, 2, 3]);
    assert_eq!(left(&mut open_for(folder.path(), &clock, &[0, 2])), [0, 2]);
    assert_eq!(left(&mut open_for(folder.path(), &clock, &[2])), [2]);
    assert_eq!(pins_in(folder.path()).len(), 1);
}

#[test]
fn the_pins_of_another_identity_hold() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, few) = (Clock::manual(), small());
    let mut other = DiskTier::open(config(folder.path()), OTHER, clock.clone()).unwrap();
    let id = store(&mut other, &[0, 7]);
    pin(&mut other, id, true);
    drop(other);
    let mut tier = open_for(folder.path(), &clock, &[0, few[0]]);
    for token in &few {
        clock.advance(SECOND);
        save(&mut tier, &[*token, 7]);
        assert!(tier.flush(PATIENCE));
    }
    drop(tier);
    let mut other = DiskTier::open(config(folder.path()), OTHER, clock).unwrap();
    assert!(is_pinned(&mut other, id));
}

#[test]
fn an_entry_that_is_pinned_on_its_way_arrives_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let (config, clock) = (config(folder.path()), Clock::manual());
    let mut tier = open(&config, &clock);
    // Before its first tensor, and after its last one.
    let (manifest, tensors) = content(&[1, 7]);
    let mut early = tier.save(manifest).unwrap().unwrap();
    let early_id = early.id();
    assert!(tier.pin(early_id, true));
    assert!(tier.flush(PATIENCE));
    assert_eq!(pins_in(folder.path()).len(), 0, "it is not there yet");
    tensors.into_iter().for_each(|tensor| early.tensor(tensor).unwrap());
    early.finish().unwrap();
    let late_id = save(&mut tier, &[2, 7]).unwrap();
    assert!(tier.pin(late_id, true));
    assert!(tier.flush(PATIENCE));
    let ids = [early_id, late_id];
    assert_eq!(ids.map(|id| is_pinned(&mut tier, id)), [true; 2]);
    drop(tier);
    let mut tier = open(&config, &clock);
    assert_eq!(ids.map(|id| is_pinned(&mut tier, id)), [true; 2]);
    assert!(!tier.pin(DiskId::LEAST, true), "there is no such entry");
}

#[test]
fn a_longer_entry_does_not_take_the_place_of_a_pinned_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::manual());
    let short: Vec<u32> = vec![3; 9];
    let can_trim = |last: &u32| content(&[&short[..], &[*last]].concat()).0.can_trim;
    let long = [&short[..], &[(0..9).find(can_trim).unwrap()]].concat();
    let id = store(&mut tier, &short);
    pin(&mut tier, id, true);
    let longer = store(&mut tier, &long);
    assert!(tier.contains(id) && tier.contains(longer));
    pin(&mut tier, id, false);
    tier.remove(longer);
    store(&mut tier, &long);
    assert!(!tier.contains(id), "it is not pinned any more");
}

#[test]
fn what_goes_takes_its_pin_with_it_and_a_stray_pin_is_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    let (config, clock) = (config(folder.path()), Clock::manual());
    let mut tier = open(&config, &clock);
    let ids = store_each(&mut tier, &clock, &[0, 1, 2]);
    ids.iter().for_each(|id| pin(&mut tier, *id, true));
    assert!(tier.remove(ids[0]));
    assert!(tier.flush(PATIENCE));
    assert_eq!((pins_in(folder.path()).len(), left(&mut tier)), (2, vec![1, 2]));
    std::fs::remove_file(tier.folder.entry_path(ids[1])).unwrap();
    // A damaged file is dropped, and its pin with it at the next start at the latest.
    std::fs::write(tier.folder.entry_path(ids[2]), b"no prompt").unwrap();
    let others = tier.folder.own_folder().join("notes.pin");
    std::fs::write(&others, b"not ours").unwrap();
    drop(tier);
    drop(open(&config, &clock));
    drop(open(&config, &clock));
    assert_eq!(pins_in(folder.path()), [others]);
}

#[test]
fn an_entry_that_is_removed_on_its_way_is_never_found() {
    let folder = tempfile::tempdir().unwrap();
    let (config, clock) = (config(folder.path()), Clock::manual());
    let mut tier = open(&config, &clock);
    let id = save(&mut tier, &[1, 7]).unwrap();
    let name = PromptId::of(&[1, 7]);
    let gone = tier.retain(|prompt| prompt != name);
    assert_eq!((gone, tier.contains(id), tier.named(name)), (vec![name], false, vec![]));
    assert!(tier.flush(PATIENCE));
    assert!(tier.find(&[1, 7, 8], 0).is_none());
    assert!(tier.flush(PATIENCE));
    assert_eq!(files_in(folder.path()), Vec::<PathBuf>::new());
    assert_eq!((tier.stats().entries, tier.stats().bytes), (0, 0));
}

#[test]
fn a_disk_that_takes_no_pins_serves_as_before() {
    use super::scripted::{Fate, Kind, ScriptedFiles};
    let folder = tempfile::tempdir().unwrap();
    let files = ScriptedFiles::new(|kind, path: &Path| {
        let pins = path.extension().is_some_and(|end| end == "pin") && kind == Kind::Create;
        if pins { Fate::Fails(0, std::io::ErrorKind::StorageFull) } else { Fate::Done }
    });
    let clock = Clock::manual();
    let mut tier =
        DiskTier::open_with(config(folder.path()), IDENTITY, clock.clone(), files).unwrap();
    let id = store(&mut tier, &[1, 7]);
    pin(&mut tier, id, true);
    let early = save(&mut tier, &[2, 7]).unwrap();
    pin(&mut tier, early, true);
    assert_eq!(tier.stats().read_only, None);
    assert!(is_pinned(&mut tier, id) && is_pinned(&mut tier, early), "for as long as it runs");
    check_all(&mut tier);
}
