//! The kept prompts of both tiers, for those to whom they belong: listed, pinned, deleted, written down.
//!
//! A [`KeptPrompt`] is a sequence of tokens, whichever tiers have it. It is pinned if either tier has it pinned,
//! and what is done to it is done in both. A command runs between two ticks and looks at plain figures only; rows
//! that are live meanwhile keep what they have of a prompt that is deleted, and leave their own behind.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::sync::oneshot;

use super::archive::Archive;
use super::{Executor, Scheduler};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::limits::LISTED_TOKENS_MAX;
use crate::prompt_cache::disk::DiskEntry;
use crate::prompt_cache::{EntryView, Origin, PromptId};
use crate::telemetry::{DiskCacheSnapshot, PromptCacheSnapshot};

/// Where an answer goes. It is dropped if the engine fails before.
pub type Reply<T> = oneshot::Sender<T>;

/// What is asked about kept prompts.
#[derive(Debug)]
pub enum CacheCommand {
    /// All of them, those used last first.
    List {
        /// Hears them.
        reply: Reply<KeptPrompts>,
    },
    /// Pin or unpin one.
    Pin {
        /// Which one.
        id: PromptId,
        /// Whether it is pinned from now on.
        pinned: bool,
        /// Hears whether there is one of that name.
        reply: Reply<bool>,
    },
    /// Delete one, pinned or not.
    Delete {
        /// Which one.
        id: PromptId,
        /// Hears whether there was one of that name.
        reply: Reply<bool>,
    },
    /// Delete all.
    Clear {
        /// Whether those that are pinned go too.
        pinned: bool,
        /// Hears what went.
        reply: Reply<Cleared>,
    },
    /// Write down all that the disk does not have.
    Flush {
        /// Hears when that is done or has taken too long; `Unsupported` if prompts are not kept on disk.
        reply: Reply<Result<Flushed>>,
    },
}

/// A kept prompt: see the module's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPrompt {
    /// Names it.
    pub id: PromptId,
    /// How many tokens it has.
    pub tokens: usize,
    /// The first of them, [`LISTED_TOKENS_MAX`] at most.
    pub first_tokens: Vec<u32>,
    /// The last of them, as many.
    pub last_tokens: Vec<u32>,
    /// Bytes of its caches in memory, if it is there.
    pub memory_bytes: Option<u64>,
    /// Bytes of its file, if it is on disk.
    pub disk_bytes: Option<u64>,
    /// Time since it was kept first.
    pub age: Duration,
    /// Time since it was used last.
    pub idle: Duration,
    /// How often it served, since the server started.
    pub hits: u64,
    /// Whether it goes after all that are not pinned.
    pub pinned: bool,
    /// Where in a row's life it was kept.
    pub origin: Origin,
}

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptPrompts {
    /// One for each sequence of tokens.
    pub prompts: Vec<KeptPrompt>,
    /// The figures of the memory; a cap of 0 is a cache that is off.
    pub memory: PromptCacheSnapshot,
    /// The figures of the disk, if prompts are kept there.
    pub disk: Option<DiskCacheSnapshot>,
}

/// What became of the kept prompts when all were to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleared {
    /// Those that went.
    pub deleted: usize,
    /// Of these, those that were pinned.
    pub deleted_pinned: usize,
    /// Those that stay because they are pinned.
    pub kept_pinned: usize,
}

/// What a flush came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flushed {
    /// Whether nothing that it was asked for is left to do.
    pub complete: bool,
    /// Prompts that were written meanwhile.
    pub saved: u64,
    /// Prompts in memory that are not on disk: the disk refused them, or they came since.
    pub unsaved: usize,
    /// The figures of the disk, which say why.
    pub disk: DiskCacheSnapshot,
}

impl<E: Executor> Scheduler<E> {
    /// Does what is asked, and answers; a flush is answered by a later tick. A caller who left does not want the
    /// answer.
    pub fn command(&mut self, command: CacheCommand) {
        match command {
            CacheCommand::List { reply } => drop(reply.send(self.kept_prompts())),
            CacheCommand::Pin { id, pinned, reply } => drop(reply.send(self.pin_kept(id, pinned))),
            CacheCommand::Delete { id, reply } => drop(reply.send(self.delete_kept(id))),
            CacheCommand::Clear { pinned, reply } => drop(reply.send(self.clear_kept(pinned))),
            CacheCommand::Flush { reply } => self.flush_kept(reply),
        }
        // Figures may have changed that are not published otherwise.
        self.posted_at = None;
    }

    fn kept_prompts(&mut self) -> KeptPrompts {
        let now = self.clock.now();
        let mut kept: HashMap<PromptId, KeptPrompt> =
            self.prompts.entries().map(|view| (view.prompt, in_memory(view, now))).collect();
        if let Some(archive) = &mut self.archive {
            let unix_now = self.clock.unix_time();
            for entry in archive.disk().entries() {
                let stored = on_disk(&entry, unix_now);
                match kept.get_mut(&entry.prompt) {
                    Some(prompt) => prompt.join(&stored),
                    None => drop(kept.insert(entry.prompt, stored)),
                }
            }
        }
        let mut prompts: Vec<KeptPrompt> = kept.into_values().collect();
        prompts.sort_by_key(|prompt| (prompt.idle, prompt.id));
        let (memory, disk) = (self.prompts.counts(), self.archive.as_mut().map(Archive::stats));
        KeptPrompts { prompts, memory, disk }
    }

    fn pin_kept(&mut self, id: PromptId, pinned: bool) -> bool {
        let entry = self.prompts.named(id);
        let in_memory = entry.is_some_and(|entry| self.prompts.pin(entry, pinned));
        let on_disk = self.archive.as_mut().is_some_and(|archive| archive.pin(id, pinned));
        in_memory || on_disk
    }

    fn delete_kept(&mut self, id: PromptId) -> bool {
        !self.retain_kept(|other| other != id).is_empty()
    }

    fn clear_kept(&mut self, pinned: bool) -> Cleared {
        let in_memory = self.prompts.entries().filter(|view| view.pinned).map(|view| view.prompt);
        let mut all_pinned: HashSet<PromptId> = in_memory.collect();
        all_pinned.extend(self.archive.iter_mut().flat_map(Archive::pinned));
        let gone = self.retain_kept(|id| !pinned && all_pinned.contains(&id));
        let deleted_pinned = gone.intersection(&all_pinned).count();
        let kept_pinned = all_pinned.len() - deleted_pinned;
        Cleared { deleted: gone.len(), deleted_pinned, kept_pinned }
    }

    /// Deletes all but those that `stays` names.
    fn retain_kept(&mut self, stays: impl Fn(PromptId) -> bool) -> HashSet<PromptId> {
        let mut gone: HashSet<PromptId> = self.prompts.retain(&stays).into_iter().collect();
        gone.extend(self.archive.iter_mut().flat_map(|archive| archive.retain(&stays)));
        gone
    }

    fn flush_kept(&mut self, reply: Reply<Result<Flushed>>) {
        match &mut self.archive {
            Some(archive) => archive.ask_flush(&mut self.prompts, self.clock.now(), reply),
            None => drop(reply.send(Err(no_disk()))),
        }
    }
}

/// Why nothing can be flushed where prompts are not kept on disk.
pub(crate) fn no_disk() -> Error {
    Error::new(Code::Unsupported, "this server keeps no prompts on disk")
        .with_hint("`--ssd-cache FOLDER` has it keep them there")
}

impl KeptPrompt {
    /// Adds what the disk has of the same tokens.
    fn join(&mut self, stored: &Self) {
        self.disk_bytes = stored.disk_bytes;
        self.age = self.age.max(stored.age);
        self.idle = self.idle.min(stored.idle);
        self.hits += stored.hits;
        self.pinned |= stored.pinned;
    }
}

fn in_memory(view: EntryView, now: Time) -> KeptPrompt {
    KeptPrompt {
        id: view.prompt,
        tokens: view.tokens,
        first_tokens: view.first_tokens,
        last_tokens: view.last_tokens,
        memory_bytes: Some(view.bytes),
        disk_bytes: None,
        age: now.saturating_sub(view.kept_at),
        idle: now.saturating_sub(view.used_at),
        hits: view.hits,
        pinned: view.pinned,
        origin: view.origin,
    }
}

fn on_disk(entry: &DiskEntry<'_>, unix_now: Duration) -> KeptPrompt {
    let listed = entry.tokens.len().min(LISTED_TOKENS_MAX);
    KeptPrompt {
        id: entry.prompt,
        tokens: entry.tokens.len(),
        first_tokens: entry.tokens[..listed].to_vec(),
        last_tokens: entry.tokens[entry.tokens.len() - listed..].to_vec(),
        memory_bytes: None,
        disk_bytes: Some(entry.bytes),
        age: unix_now.saturating_sub(entry.created_at),
        idle: unix_now.saturating_sub(entry.used_at),
        hits: entry.hits,
        pinned: entry.pinned,
        origin: entry.origin,
    }
}
