//! How long a look-up takes among many long entries, for `slipstream bench`.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Origin, PromptCache, Snapshot};
use crate::clock::{Time, thread_busy};
use crate::error::Result;

/// What is stored, and how often it is looked up.
#[derive(Debug, Clone, Copy)]
pub struct LookupLoad {
    /// Entries; every second one of a group can be trimmed.
    pub entries: usize,
    /// Tokens of each entry.
    pub tokens: usize,
    /// System prompts: an entry begins with one of them.
    pub groups: usize,
    /// Tokens of a system prompt.
    pub system_tokens: usize,
    /// Prompts that are looked up. Each goes along an entry for a while, then its own way.
    pub lookups: usize,
}

/// What the look-ups came to.
#[derive(Debug, Clone, Copy)]
pub struct LookupTimes {
    /// Look-ups that were served.
    pub hits: u64,
    /// Their median.
    pub p50: Duration,
    /// Of a hundred, one takes longer.
    pub p99: Duration,
    /// The longest.
    pub most: Duration,
}

/// Measures [`PromptCache::take`] in processor time of the thread, so that what else runs does not count.
///
/// # Errors
/// None: the snapshots are empty.
pub fn measure_lookups(load: &LookupLoad) -> Result<LookupTimes> {
    let mut random = StdRng::seed_from_u64(0);
    let (mut cache, texts) = fill(load, &mut random);
    let mut took = Vec::new();
    for _ in 0..load.lookups {
        let prompt = prompt(&texts, &mut random);
        let busy = thread_busy();
        cache.take(&prompt, Time::ZERO)?;
        took.push(thread_busy() - busy);
    }
    took.sort_unstable();
    let at = |share: usize| took.get(took.len() * share / 100).copied().unwrap_or_default();
    let most = took.last().copied().unwrap_or_default();
    Ok(LookupTimes { hits: cache.counts().hits, p50: at(50), p99: at(99), most })
}

fn fill(load: &LookupLoad, random: &mut StdRng) -> (PromptCache<Hollow>, Vec<Vec<u32>>) {
    let systems: Vec<Vec<u32>> =
        (0..load.groups.max(1)).map(|_| text(load.system_tokens, random)).collect();
    let mut cache = PromptCache::new(u64::MAX);
    let mut texts = Vec::new();
    for index in 0..load.entries {
        let mut tokens = systems[index % systems.len()].clone();
        tokens.extend(text(load.tokens.saturating_sub(tokens.len()), random));
        let can_trim = (index / systems.len()).is_multiple_of(2);
        let snapshot = Hollow { tokens: tokens.len(), can_trim };
        cache.put(tokens.clone(), snapshot, Origin::Finished, Time::ZERO);
        texts.push(tokens);
    }
    (cache, texts)
}

/// As long as the entry that it follows, from its middle at the earliest.
fn prompt(texts: &[Vec<u32>], random: &mut StdRng) -> Vec<u32> {
    let mut prompt = texts[random.random_range(0..texts.len())].clone();
    let own = random.random_range(0..=prompt.len() / 2);
    prompt.truncate(prompt.len() - own);
    prompt.extend(text(own + 1, random));
    prompt
}

fn text(tokens: usize, random: &mut StdRng) -> Vec<u32> {
    (0..tokens).map(|_| random.random_range(0..100_000)).collect()
}

/// A snapshot of nothing.
#[derive(Debug, Clone, Copy)]
struct Hollow {
    tokens: usize,
    can_trim: bool,
}

impl Snapshot for Hollow {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn bytes(&self) -> u64 {
        1
    }

    fn can_trim(&self) -> bool {
        self.can_trim
    }

    fn share(&self) -> Self {
        *self
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        self.tokens -= tokens;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measured_lookup_finds_its_entry_or_its_system_prompt() {
        let load =
            LookupLoad { entries: 60, tokens: 50, groups: 3, system_tokens: 20, lookups: 200 };
        let times = measure_lookups(&load).unwrap();
        assert_eq!(times.hits, load.lookups as u64);
        assert!(times.p50 <= times.p99 && times.p99 <= times.most);
    }

    #[test]
    #[ignore = "a measurement: run it optimized, with --nocapture"]
    fn ten_thousand_entries_of_8k_tokens() {
        let load = LookupLoad {
            entries: 10_000,
            tokens: 8192,
            groups: 20,
            system_tokens: 2000,
            lookups: 5000,
        };
        println!("{:?}", measure_lookups(&load).unwrap());
        let (cache, _) = fill(&load, &mut StdRng::seed_from_u64(0));
        let busy = thread_busy();
        let listed = cache.entries().count();
        println!("{listed} entries listed in {:?}", thread_busy() - busy);
    }
}
