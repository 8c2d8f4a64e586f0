//! 10^5 random rounds over a vocabulary of two tokens, so that prefixes collide: after each the cache and
//! the flat list hold, say and gave back the same. `SLIPSTREAM_SEED=n` replays one seed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::model::{Answer, Model};
use super::{Fed, Trims};
use crate::clock::Time;
use crate::prompt_cache::disk::DiskId;
use crate::prompt_cache::{
    DiskCopy, EntryId, EntryView, Evicted, Origin, PromptCache, PromptId, Unsaved,
};

const SEEDS: u64 = 400;
const ROUNDS: u64 = 250;
/// Hits of all seeds together at least, so that the rounds cannot become idle unnoticed.
const HITS_MIN: u64 = 20_000;

#[test]
fn the_cache_is_a_flat_list_of_which_the_longest_usable_prefix_serves() {
    let replay = std::env::var("SLIPSTREAM_SEED").ok().map(|seed| seed.parse().unwrap());
    let mut hits = 0;
    for seed in replay.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let mut world = World::new(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
        if let Err(panic) = outcome {
            eprintln!(
                "replay: SLIPSTREAM_SEED={seed} cargo test -p slipstream-engine \
                 --no-default-features --lib prompt_cache"
            );
            resume_unwind(panic);
        }
        hits += world.model.counts.hits;
    }
    assert!(replay.is_some() || hits > HITS_MIN, "only {hits} hits");
}

struct World {
    random: StdRng,
    cache: PromptCache<Fed>,
    model: Model,
    now: Time,
    /// All ids that were ever given.
    named: BTreeSet<EntryId>,
    tokens_max: usize,
    bytes_max: u64,
    /// Of 100 snapshots.
    trimmable: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let cap_bytes = random.random_range(0..400);
        Self {
            cache: PromptCache::new(cap_bytes),
            model: Model::new(cap_bytes),
            now: Time::ZERO,
            named: BTreeSet::new(),
            tokens_max: *pick(&mut random, &[3, 8, 24, 80]),
            bytes_max: *pick(&mut random, &[10, 40, 200]),
            trimmable: *pick(&mut random, &[0, 30, 70, 100]),
            random,
        }
    }

    fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.now += Duration::from_micros(self.random.random_range(0..3));
            match self.random.random_range(0..100) {
                0..38 => self.put(),
                38..80 => self.take(),
                80..85 => self.trim_to(),
                85..90 => self.pin(),
                90..94 => self.mark_saved(),
                94..97 => self.remove(),
                97..99 => self.set_cap_bytes(),
                _ => self.retain(),
            }
            self.compare();
        }
    }

    fn put(&mut self) {
        let tokens = self.tokens();
        let bytes = self.random.random_range(1..=self.bytes_max);
        let can_trim = self.random.random_range(0..100) < self.trimmable;
        let trims = if can_trim { Trims::Always } else { Trims::Never };
        let snapshot = Fed::new(&tokens, bytes, trims);
        let origin = *pick(&mut self.random, &[Origin::Boundary, Origin::Finished]);
        let evicted = self.cache.put(tokens.clone(), snapshot.clone(), origin, self.now);
        if tokens.is_empty() {
            assert_eq!(evicted, []);
        } else if self.model.has_room(&tokens, bytes) {
            let old = self.model.find(&tokens);
            let id = self.cache.find(&tokens).expect("what has room is stored");
            assert!(old == Some(id) || old.is_none() && self.named.insert(id));
            assert_eq!(evicted, self.model.put(id, &tokens, snapshot, origin, self.now));
        } else {
            self.model.counts.refusals += 1;
            let id = evicted[0].id;
            assert!(self.named.insert(id));
            let (pinned, on_disk) = (false, DiskCopy::Unsaved);
            assert_eq!(evicted, [Evicted { id, tokens, snapshot, origin, pinned, on_disk }]);
        }
    }

    fn take(&mut self) {
        let prompt = self.tokens();
        let usable = self.cache.usable_tokens(&prompt);
        let taken = self.cache.take(&prompt, self.now).unwrap();
        let answer = Answer { cached_tokens: taken.cached_tokens, near: taken.near };
        assert_eq!(answer, self.model.take(&prompt, self.now), "{prompt:?}");
        assert_eq!(usable, answer.cached_tokens);
        assert_eq!(taken.snapshot.is_some(), usable > 0);
        if let Some(mut snapshot) = taken.snapshot {
            assert_eq!(*snapshot.tokens, prompt[..usable]);
            snapshot.feed(9);
        }
    }

    fn trim_to(&mut self) {
        let bytes = self.random.random_range(0..=self.model.bytes().max(1));
        assert_eq!(self.cache.trim_to(bytes), self.model.trim_to(bytes));
        assert!(self.cache.bytes() <= bytes);
    }

    fn set_cap_bytes(&mut self) {
        let bytes = self.random.random_range(0..400);
        self.model.cap_bytes = bytes;
        assert_eq!(self.cache.set_cap_bytes(bytes), self.model.trim_to(bytes));
    }

    fn pin(&mut self) {
        let (id, pinned) = (self.id(), self.random.random_bool(0.5));
        assert_eq!(self.cache.pin(id, pinned), self.model.pin(id, pinned));
    }

    fn mark_saved(&mut self) {
        let file = match self.random.random_range(0..5) {
            0 => DiskCopy::Unsaved,
            1 => DiskCopy::Refused,
            _ => DiskCopy::File(DiskId::new()),
        };
        let id = self.id();
        assert_eq!(self.cache.mark_saved(id, file), self.model.mark_saved(id, file));
    }

    fn remove(&mut self) {
        let id = self.id();
        assert_eq!(self.cache.remove(id), self.model.remove(id));
    }

    fn retain(&mut self) {
        let views = self.model.views();
        let few = self.random.random_range(0..3);
        let stays = |prompt: PromptId| {
            views.iter().position(|view| view.prompt == prompt).is_some_and(|at| at % 3 < few)
        };
        assert_eq!(self.cache.retain(stays), self.model.retain(stays));
    }

    fn compare(&mut self) {
        self.cache.trie.check();
        let views: Vec<EntryView> = self.cache.entries().collect();
        assert_eq!(views, self.model.views());
        let unsaved = views.iter().filter(|view| view.on_disk == DiskCopy::Unsaved);
        let unsaved: Vec<Unsaved> = unsaved
            .map(|view| Unsaved { id: view.id, used_at: view.used_at, bytes: view.bytes })
            .collect();
        assert_eq!(self.cache.unsaved().collect::<Vec<_>>(), unsaved);
        assert_eq!((self.cache.len(), self.cache.bytes()), (views.len(), self.model.bytes()));
        assert!(self.cache.bytes() <= self.cache.cap_bytes());
        assert_eq!(self.cache.counts(), self.model.counts());
        for entry in &self.model.entries {
            assert_eq!(self.cache.find(&entry.tokens), Some(entry.id));
            assert_eq!(self.cache.named(PromptId::of(&entry.tokens)), Some(entry.id));
            assert_eq!(self.cache.tokens(entry.id).as_ref(), Some(&entry.tokens));
            let stored = self.cache.share(entry.id).unwrap();
            assert_eq!(*stored.tokens, entry.tokens, "what is stored never changes");
        }
    }

    /// Random tokens; half of them begin as an entry does.
    fn tokens(&mut self) -> Vec<u32> {
        let mut tokens = Vec::new();
        let entries = self.model.entries.len();
        if entries > 0 && self.random.random_bool(0.5) {
            tokens.clone_from(&self.model.entries[self.random.random_range(0..entries)].tokens);
            let kept = self.random.random_range(0..=2 * tokens.len());
            tokens.truncate(kept);
        }
        let more = self.random.random_range(0..=self.tokens_max);
        tokens.extend((0..more).map(|_| self.random.random_range(0..2)));
        tokens.truncate(2 * self.tokens_max);
        tokens
    }

    /// The name of an entry, or now and then of none.
    fn id(&mut self) -> EntryId {
        let entries = self.model.entries.len();
        match self.random.random_range(0..=entries) {
            index if index < entries => self.model.entries[index].id,
            _ => EntryId(self.random.random_range(0..50)),
        }
    }
}

fn pick<'a, T>(random: &mut StdRng, choices: &'a [T]) -> &'a T {
    &choices[random.random_range(0..choices.len())]
}
