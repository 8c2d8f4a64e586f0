//! What may be on the disk, and how much may be written to it.

use std::collections::BTreeMap;

use super::*;

const OTHER: &str = "badc0de5badc0de5";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_bytes_of_a_day_are_spent_across_restarts_and_come_back_at_midnight() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    clock.advance(20_000 * DAY + Duration::from_secs(100));
    let sizes = [[0, 7], [1, 7], [2, 7], [3, 7]].map(|tokens| file_bytes(&tokens));
    let day_limit_bytes = Some(sizes[0] + sizes[1] + sizes[2].max(sizes[3]) - 1);
    let config = DiskConfig { day_limit_bytes, ..config(folder.path()) };
    let mut tier = open(&config, &clock);
    store(&mut tier, &[0, 7]);
    // Admitted bytes count before they are written.
    save(&mut tier, &[1, 7]).unwrap();
    let refused = if sizes[2] > sizes[3] { [2, 7] } else { [3, 7] };
    assert!(save(&mut tier, &refused).is_none());
    assert!(tier.flush(PATIENCE));
    drop(tier);
    let mut tier = open(&config, &clock);
    assert_eq!(tier.stats().written_today_bytes, sizes[0] + sizes[1]);
    assert!(save(&mut tier, &refused).is_none());
    clock.advance(DAY - Duration::from_secs(101));
    assert!(save(&mut tier, &refused).is_none(), "it is a second to midnight");
    clock.advance(SECOND);
    assert_eq!(tier.stats().written_today_bytes, 0);
    store(&mut tier, &refused);
    let stats = tier.stats();
    assert_eq!(stats.written_today_bytes, file_bytes(&refused));
    assert_eq!(stats.written_bytes, sizes[0] + sizes[1] + file_bytes(&refused));
    // Removing does not make written bytes unwritten.
    tier.retain(|_| false);
    assert!(tier.flush(PATIENCE));
    assert_eq!(tier.stats().written_bytes, stats.written_bytes);
}

#[test]
fn what_another_tier_wrote_today_counts_though_this_one_has_not_seen_it() {
    let folder = tempfile::tempdir().unwrap();
    let day_limit_bytes = Some(file_bytes(&[0, 7]) + file_bytes(&[1, 7]) - 1);
    let config = DiskConfig { day_limit_bytes, ..config(folder.path()) };
    let clock = Clock::manual();
    let mut one = open(&config, &clock);
    let mut two = DiskTier::open(config.clone(), OTHER, clock.clone()).unwrap();
    store(&mut one, &[0, 7]);
    save(&mut two, &[1, 7]).expect("it cannot know");
    assert!(two.flush(PATIENCE));
    let stats = two.stats();
    assert_eq!((stats.failed, stats.saved, stats.read_only), (1, 0, None));
    assert_eq!(stats.written_today_bytes, file_bytes(&[0, 7]));
    assert!(save(&mut two, &[1, 7]).is_none(), "it knows now");
}

#[test]
fn an_abandoned_entry_costs_what_was_written_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(&config(folder.path()), &Clock::manual());
    let (manifest, tensors) = content(&[0, 7]);
    let mut saving = tier.save(manifest).unwrap().unwrap();
    saving.tensor(tensors[0].clone()).unwrap();
    assert!(tier.flush(PATIENCE));
    assert_eq!(tier.stats().written_bytes, file_bytes(&[0, 7]), "all of it is entered first");
    drop(saving);
    assert!(tier.flush(PATIENCE));
    let page = crate::limits::DISK_ALIGNMENT_BYTES;
    let written = page + (tensors[0].bytes.len() as u64).next_multiple_of(page);
    assert_eq!(tier.stats().written_bytes, written);
}

#[test]
fn an_entry_larger_than_the_folder_may_be_evicts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let max_bytes = file_bytes(&[0, 7]).max(file_bytes(&[1, 7]));
    let mut tier = open(&DiskConfig { max_bytes, ..config(folder.path()) }, &Clock::manual());
    store(&mut tier, &[0, 7]);
    let (mut manifest, _) = content(&[1, 7]);
    manifest.tensors[0].bytes = max_bytes;
    assert!(tier.save(manifest).unwrap().is_none());
    check_all(&mut tier);
    assert_eq!(tier.stats().entries, 1);
}

#[test]
fn what_is_being_written_is_never_evicted_and_keeps_its_room() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (file_bytes(&[0, 7]), file_bytes(&[1, 7]));
    let max_bytes = first + second - 1;
    let mut tier = open(&DiskConfig { max_bytes, ..config(folder.path()) }, &Clock::manual());
    let (manifest, tensors) = content(&[0, 7]);
    let mut saving = tier.save(manifest).unwrap().unwrap();
    let id = saving.id();
    assert!(tier.flush(PATIENCE));
    save(&mut tier, &[1, 7]).expect("the engine thread does not look at files");
    assert!(tier.flush(PATIENCE));
    assert_eq!((tier.stats().failed, tier.stats().read_only), (1, None));
    tensors.into_iter().for_each(|tensor| saving.tensor(tensor).unwrap());
    saving.finish().unwrap();
    assert!(tier.flush(PATIENCE));
    check_entry(&mut tier, id);
    // Now that it is whole it may go.
    store(&mut tier, &[1, 7]);
    assert!(!tier.contains(id));
    check_all(&mut tier);
}

#[test]
fn a_cap_that_was_lowered_holds_when_the_folder_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (config, clock) = (config(folder.path()), Clock::manual());
    let mut tier = open(&config, &clock);
    for token in 0..6 {
        clock.advance(SECOND);
        store(&mut tier, &[token, 7]);
    }
    drop(tier);
    let max_bytes = file_bytes(&[4, 7]) + file_bytes(&[5, 7]);
    let mut tier = open(&DiskConfig { max_bytes, ..config }, &clock);
    let mut left: Vec<u32> = tier.entries().map(|entry| entry.tokens[0]).collect();
    left.sort_unstable();
    assert_eq!(left, [4, 5]);
    assert_eq!(tier.stats().evicted, 4);
    check_all(&mut tier);
}

/// An entry of the folder.
#[derive(Clone)]
struct Held {
    owner: usize,
    id: DiskId,
    tokens: Vec<u32>,
    pinned: bool,
}

/// Two tiers of one folder, and what must be in it.
struct Model {
    config: DiskConfig,
    clock: Clock,
    tiers: [DiskTier; 2],
    /// By last use.
    entries: BTreeMap<Duration, Held>,
    /// Bytes of the file of `[token, 7]`, by token.
    sizes: Vec<u64>,
}

impl Model {
    fn new(config: &DiskConfig) -> Self {
        let clock = Clock::manual();
        clock.advance(DAY);
        let tiers = [IDENTITY, OTHER]
            .map(|identity| DiskTier::open(config.clone(), identity, clock.clone()).unwrap());
        let sizes = (0..12).map(|token| file_bytes(&[token, 7])).collect();
        Self { config: config.clone(), clock, tiers, entries: BTreeMap::new(), sizes }
    }

    fn bytes(&self) -> u64 {
        self.bytes_of(|_| true)
    }

    fn bytes_of(&self, counts: impl Fn(&Held) -> bool) -> u64 {
        let held = self.entries.values().filter(|held| counts(held));
        held.map(|held| self.sizes[held.tokens[0] as usize]).sum()
    }

    fn save(&mut self, owner: usize, tokens: Vec<u32>) {
        let now = self.clock.unix_time();
        let held =
            self.entries.iter().find(|(_, held)| held.owner == owner && held.tokens == tokens);
        match (held.map(|(used_at, _)| *used_at), save(&mut self.tiers[owner], &tokens)) {
            (Some(used_at), None) => self.used(used_at, now),
            // The other tier removed it, and this one does not know yet.
            (None, None) => {
                let id = self.tiers[owner].index.with_tokens(&tokens).unwrap();
                assert!(self.tiers[owner].restore(id).is_err());
                assert!(!self.tiers[owner].contains(id));
            }
            (None, Some(id)) => {
                let (size, max_bytes) = (self.sizes[tokens[0] as usize], self.config.max_bytes);
                if self.bytes_of(|held| held.pinned) + size > max_bytes {
                    return;
                }
                while self.bytes() + size > max_bytes {
                    let first = self.entries.iter().find(|(_, held)| !held.pinned).unwrap();
                    let used_at = *first.0;
                    self.entries.remove(&used_at);
                }
                self.entries.insert(now, Held { owner, id, tokens, pinned: false });
            }
            (Some(_), Some(id)) => panic!("{id} was saved twice"),
        }
    }

    fn used(&mut self, used_at: Duration, now: Duration) {
        let entry = self.entries.remove(&used_at).unwrap();
        self.entries.insert(now, entry);
    }

    fn step(&mut self, random: &mut StdRng) {
        self.clock.advance(SECOND);
        let now = self.clock.unix_time();
        let place = random.random_range(0..self.entries.len().max(1));
        let held = self.entries.iter().nth(place);
        let held = held.map(|(used_at, held)| (*used_at, held.owner, held.id));
        match (random.random_range(0..12), held) {
            (0..5, _) => {
                let tokens = vec![random.random_range(0..12), 7];
                self.save(random.random_range(0..2), tokens);
            }
            (5, Some((used_at, owner, id))) => {
                self.tiers[owner].touch(id);
                self.used(used_at, now);
            }
            (6, Some((used_at, owner, id))) => {
                check_entry(&mut self.tiers[owner], id);
                self.used(used_at, now);
            }
            (7, Some((used_at, owner, id))) => {
                assert!(self.tiers[owner].remove(id));
                self.entries.remove(&used_at);
            }
            (9..11, Some((used_at, owner, id))) => {
                let pinned = random.random_bool(0.6);
                assert!(self.tiers[owner].pin(id, pinned));
                self.entries.get_mut(&used_at).unwrap().pinned = pinned;
            }
            (8, _) => {
                let tiers = [IDENTITY, OTHER].map(|identity| {
                    DiskTier::open(self.config.clone(), identity, self.clock.clone()).unwrap()
                });
                self.tiers = tiers;
            }
            _ => {}
        }
        self.tiers.iter_mut().for_each(|tier| assert!(tier.flush(PATIENCE)));
    }

    fn check(&mut self) {
        let path = |held: &Held| self.tiers[held.owner].folder.entry_path(held.id);
        let mut expected: Vec<PathBuf> = self.entries.values().map(path).collect();
        let pinned = self.entries.values().filter(|held| held.pinned).map(path);
        let mut expected_pins: Vec<PathBuf> =
            pinned.map(|path| path.with_extension("pin")).collect();
        let (mut files, mut pins) = everything_in(&self.config.folder);
        for paths in [&mut files, &mut pins, &mut expected, &mut expected_pins] {
            paths.sort();
        }
        assert_eq!((&files, pins), (&expected, expected_pins));
        for held in self.entries.values() {
            assert_eq!(is_pinned(&mut self.tiers[held.owner], held.id), held.pinned);
        }
        let bytes: u64 = files.iter().map(|path| path.metadata().unwrap().len()).sum();
        assert_eq!(bytes, self.bytes());
        assert!(bytes <= self.config.max_bytes);
    }
}

#[test]
fn what_was_used_least_recently_goes_first_whosever_it_is() {
    for_seeds(0..8, "room", |_, random| {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::new(&DiskConfig { max_bytes: 500_000, ..config(folder.path()) });
        for _ in 0..60 {
            model.step(random);
            model.check();
        }
    });
}
