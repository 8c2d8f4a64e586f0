//! `/v1/cache`: the prompts that are kept.

use serde::Serialize;
use serde_json::Value;

use super::models;
use super::stats::{DiskCacheStats, PromptCacheStats};
use crate::error::Result;
use crate::gateway::{CacheListing, Cleared, Flushed, ListedPrompt};
use crate::prompt_cache::PromptId;

/// What an object of a kept prompt is.
const PROMPT: &str = "cache.prompt";

/// Reads the body that pins a prompt: `pinned`, true or false.
///
/// # Errors
/// `InvalidRequest`, naming the field.
pub fn pin(body: &Value) -> Result<bool> {
    models::pin(body)
}

/// What is kept.
#[derive(Debug, Clone, Serialize)]
pub struct CacheBody {
    object: &'static str,
    data: Vec<CachedPrompt>,
    prompt_cache: PromptCacheStats,
    disk_cache: Option<DiskCacheStats>,
}

/// A kept prompt.
#[derive(Debug, Clone, Serialize)]
struct CachedPrompt {
    id: String,
    object: &'static str,
    model: String,
    tokens: usize,
    bytes: u64,
    tiers: Vec<&'static str>,
    age_seconds: f64,
    idle_seconds: f64,
    hits: u64,
    pinned: bool,
    origin: &'static str,
    first_words: String,
    last_words: String,
}

impl From<CacheListing> for CacheBody {
    fn from(listing: CacheListing) -> Self {
        Self {
            object: "list",
            data: listing.prompts.into_iter().map(CachedPrompt::from).collect(),
            prompt_cache: PromptCacheStats::from(&listing.memory),
            disk_cache: listing.disk.as_ref().map(DiskCacheStats::from),
        }
    }
}

impl From<ListedPrompt> for CachedPrompt {
    fn from(prompt: ListedPrompt) -> Self {
        let tiers = [("memory", prompt.memory_bytes), ("disk", prompt.disk_bytes)];
        let holding = tiers.into_iter().filter(|(_, bytes)| bytes.is_some());
        Self {
            id: prompt.id.to_string(),
            object: PROMPT,
            model: prompt.model,
            tokens: prompt.tokens,
            bytes: prompt.memory_bytes.or(prompt.disk_bytes).unwrap_or_default(),
            tiers: holding.map(|(tier, _)| tier).collect(),
            age_seconds: prompt.age.as_secs_f64(),
            idle_seconds: prompt.idle.as_secs_f64(),
            hits: prompt.hits,
            pinned: prompt.pinned,
            origin: prompt.origin.name(),
            first_words: prompt.first_words,
            last_words: prompt.last_words,
        }
    }
}

/// That a kept prompt was pinned, or unpinned.
#[derive(Debug, Clone, Serialize)]
pub struct PinnedBody {
    id: String,
    object: &'static str,
    pinned: bool,
}

impl PinnedBody {
    /// The prompt `id` was.
    pub fn new(id: PromptId, pinned: bool) -> Self {
        Self { id: id.to_string(), object: PROMPT, pinned }
    }
}

/// That a kept prompt was deleted.
#[derive(Debug, Clone, Serialize)]
pub struct DeletedPromptBody {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl DeletedPromptBody {
    /// The prompt `id` was.
    pub fn new(id: PromptId) -> Self {
        Self { id: id.to_string(), object: PROMPT, deleted: true }
    }
}

/// What became of the kept prompts when all were to go.
#[derive(Debug, Clone, Serialize)]
pub struct ClearedBody {
    object: &'static str,
    deleted: usize,
    deleted_pinned: usize,
    kept_pinned: usize,
}

impl From<Cleared> for ClearedBody {
    fn from(Cleared { deleted, deleted_pinned, kept_pinned }: Cleared) -> Self {
        Self { object: "cache.cleared", deleted, deleted_pinned, kept_pinned }
    }
}

/// What a flush came to.
#[derive(Debug, Clone, Serialize)]
pub struct FlushedBody {
    object: &'static str,
    complete: bool,
    saved: u64,
    unsaved: usize,
    disk_cache: DiskCacheStats,
}

impl From<Flushed> for FlushedBody {
    fn from(Flushed { complete, saved, unsaved, disk }: Flushed) -> Self {
        let disk_cache = DiskCacheStats::from(&disk);
        Self { object: "cache.flush", complete, saved, unsaved, disk_cache }
    }
}
