//! The kept prompts of all models that are loaded. A name stands for its tokens in each of them.

use super::Residency;
use crate::error::{Code, Result};
use crate::gateway::kept::CacheListing;
use crate::prompt_cache::PromptId;
use crate::scheduler::{Cleared, Flushed, no_disk};
use crate::telemetry::{DiskCacheSnapshot, PromptCacheSnapshot};

impl Residency {
    /// All kept prompts, those used last first.
    ///
    /// # Errors
    /// `EngineFailed`, `QueueFull` and `ShuttingDown` when the engine cannot be asked now.
    pub async fn kept_prompts(&self) -> Result<CacheListing> {
        let memory = PromptCacheSnapshot::default();
        let mut all = CacheListing { prompts: Vec::new(), memory, disk: None };
        for engine in self.engines() {
            let listing = engine.kept_prompts().await?;
            all.prompts.extend(listing.prompts);
            all.memory = all.memory.and(&listing.memory);
            all.disk = both(all.disk, listing.disk);
        }
        // One model's come in their order already, and the sort keeps that.
        all.prompts.sort_by_key(|prompt| prompt.idle);
        Ok(all)
    }

    /// Pins or unpins a kept prompt in every tier; `false` if there is none of that name.
    ///
    /// # Errors
    /// As [`Residency::kept_prompts`].
    pub async fn pin_prompt(&self, id: PromptId, pinned: bool) -> Result<bool> {
        let mut found = false;
        for engine in self.engines() {
            found |= engine.pin_prompt(id, pinned).await?;
        }
        Ok(found)
    }

    /// Deletes a kept prompt from every tier; `false` if there is none of that name.
    ///
    /// # Errors
    /// As [`Residency::kept_prompts`].
    pub async fn delete_prompt(&self, id: PromptId) -> Result<bool> {
        let mut found = false;
        for engine in self.engines() {
            found |= engine.delete_prompt(id).await?;
        }
        Ok(found)
    }

    /// Deletes all kept prompts; pinned ones only if `pinned`.
    ///
    /// # Errors
    /// As [`Residency::kept_prompts`].
    pub async fn clear_prompts(&self, pinned: bool) -> Result<Cleared> {
        let mut all = Cleared::default();
        for engine in self.engines() {
            let cleared = engine.clear_prompts(pinned).await?;
            all.deleted += cleared.deleted;
            all.deleted_pinned += cleared.deleted_pinned;
            all.kept_pinned += cleared.kept_pinned;
        }
        Ok(all)
    }

    /// Has all kept prompts written to disk that are not there, and waits for that for a while.
    ///
    /// # Errors
    /// `Unsupported` if none are kept on disk; otherwise as [`Residency::kept_prompts`].
    pub async fn flush_prompts(&self) -> Result<Flushed> {
        let mut all: Option<Flushed> = None;
        for engine in self.engines() {
            let flushed = match engine.flush_prompts().await {
                // A model of which nothing is kept leaves it to the others.
                Err(error) if error.code() == Code::Unsupported => continue,
                flushed => flushed?,
            };
            all = Some(match all {
                None => flushed,
                Some(before) => Flushed {
                    complete: before.complete && flushed.complete,
                    saved: before.saved + flushed.saved,
                    unsaved: before.unsaved + flushed.unsaved,
                    disk: before.disk.and(&flushed.disk),
                },
            });
        }
        all.ok_or_else(no_disk)
    }

    /// Whether prompts are kept for later requests.
    pub fn keeps_prompts(&self) -> bool {
        self.engines().iter().any(super::Engine::keeps_prompts)
    }
}

fn both(
    one: Option<DiskCacheSnapshot>,
    other: Option<DiskCacheSnapshot>,
) -> Option<DiskCacheSnapshot> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.and(&other)),
        (one, other) => one.or(other),
    }
}
