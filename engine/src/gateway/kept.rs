//! The kept prompts, as those see them to whom they belong: with words that tell one from another.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::engine::Engine;
use super::generation;
use crate::error::{Code, Error, Result};
use crate::limits::LISTED_CHARS_MAX;
use crate::prompt_cache::{Origin, PromptId};
use crate::scheduler::{CacheCommand, Cleared, Flushed, KeptPrompt, KeptPrompts, Reply};
use crate::telemetry::{DiskCacheSnapshot, PromptCacheSnapshot};
use crate::tokenizer::Tokenizer;

/// What is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheListing {
    /// One for each sequence of tokens, those used last first.
    pub prompts: Vec<ListedPrompt>,
    /// The figures of the memory; a cap of 0 is a cache that is off.
    pub memory: PromptCacheSnapshot,
    /// The figures of the disk, if prompts are kept there.
    pub disk: Option<DiskCacheSnapshot>,
}

/// A kept prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedPrompt {
    /// The model that it is of.
    pub model: String,
    /// Names its tokens, in every tier and after a restart.
    pub id: PromptId,
    /// How many tokens it has.
    pub tokens: usize,
    /// What it begins with, on one line and without control tokens.
    pub first_words: String,
    /// What it ends with. System prompts begin alike; conversations end differently.
    pub last_words: String,
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

impl Engine {
    /// All kept prompts. The words are made off the engine thread.
    ///
    /// # Errors
    /// `EngineFailed`, `QueueFull` and `ShuttingDown` when the engine cannot be asked now.
    pub async fn kept_prompts(&self) -> Result<CacheListing> {
        let kept = self.ask(|reply| CacheCommand::List { reply }).await?;
        let (tokenizer, model) = (self.tokenizer().clone(), self.card().id.clone());
        spawn_blocking(move || listing(kept, &model, &tokenizer)).await.unwrap_or_else(|panic| {
            Err(Error::new(Code::Internal, format!("failed to list kept prompts: {panic}")))
        })
    }

    /// Pins or unpins a kept prompt in every tier; `false` if there is none of that name.
    ///
    /// # Errors
    /// As [`Engine::kept_prompts`].
    pub async fn pin_prompt(&self, id: PromptId, pinned: bool) -> Result<bool> {
        self.ask(|reply| CacheCommand::Pin { id, pinned, reply }).await
    }

    /// Deletes a kept prompt from every tier; `false` if there is none of that name.
    ///
    /// # Errors
    /// As [`Engine::kept_prompts`].
    pub async fn delete_prompt(&self, id: PromptId) -> Result<bool> {
        self.ask(|reply| CacheCommand::Delete { id, reply }).await
    }

    /// Deletes all kept prompts; pinned ones only if `pinned`.
    ///
    /// # Errors
    /// As [`Engine::kept_prompts`].
    pub async fn clear_prompts(&self, pinned: bool) -> Result<Cleared> {
        self.ask(|reply| CacheCommand::Clear { pinned, reply }).await
    }

    /// Has all kept prompts written to disk that are not there, and waits for that for a while.
    ///
    /// # Errors
    /// `Unsupported` if none are kept on disk; otherwise as [`Engine::kept_prompts`].
    pub async fn flush_prompts(&self) -> Result<Flushed> {
        tokio::select! {
            biased;
            flushed = self.ask(|reply| CacheCommand::Flush { reply }) => flushed?,
            // The end of the server writes them down as well, and nobody need wait for both.
            () = self.drained() => Err(generation::shutting_down()),
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> CacheCommand) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.rows().command(command(reply))?;
        answer.await.map_err(|_| generation::engine_gone())
    }
}

fn listing(kept: KeptPrompts, model: &str, tokenizer: &Tokenizer) -> Result<CacheListing> {
    let prompts = kept.prompts.iter().map(|prompt| listed(prompt, model, tokenizer));
    let prompts = prompts.collect::<Result<_>>()?;
    Ok(CacheListing { prompts, memory: kept.memory, disk: kept.disk })
}

fn listed(prompt: &KeptPrompt, model: &str, tokenizer: &Tokenizer) -> Result<ListedPrompt> {
    Ok(ListedPrompt {
        model: model.to_owned(),
        id: prompt.id,
        tokens: prompt.tokens,
        first_words: first_words(&tokenizer.decode(&prompt.first_tokens)?),
        last_words: last_words(&tokenizer.decode(&prompt.last_tokens)?),
        memory_bytes: prompt.memory_bytes,
        disk_bytes: prompt.disk_bytes,
        age: prompt.age,
        idle: prompt.idle,
        hits: prompt.hits,
        pinned: prompt.pinned,
        origin: prompt.origin,
    })
}

fn first_words(text: &str) -> String {
    // The tokens may end in the middle of a character.
    let line = one_line(text.trim_end_matches(char::REPLACEMENT_CHARACTER));
    let end = line.char_indices().nth(LISTED_CHARS_MAX).map_or(line.len(), |(end, _)| end);
    line[..end].trim_end().to_owned()
}

fn last_words(text: &str) -> String {
    let line = one_line(text.trim_start_matches(char::REPLACEMENT_CHARACTER));
    let start = line.char_indices().rev().nth(LISTED_CHARS_MAX - 1).map_or(0, |(start, _)| start);
    line[start..].trim_start().to_owned()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, first: &str, last: &str) {
        assert_eq!((first_words(text).as_str(), last_words(text).as_str()), (first, last));
    }

    #[test]
    fn words_stand_on_one_line_and_are_cut_between_characters() {
        check("", "", "");
        check(" system\nYou  are\tkind. \n", "system You are kind.", "system You are kind.");
        check("\u{FFFD}\u{FFFD}ld\u{FFFD}", "\u{FFFD}\u{FFFD}ld", "ld\u{FFFD}");
        let long = format!("{}{}", "ä".repeat(LISTED_CHARS_MAX), "ö".repeat(LISTED_CHARS_MAX));
        check(&long, &"ä".repeat(LISTED_CHARS_MAX), &"ö".repeat(LISTED_CHARS_MAX));
        let parted =
            format!("{} {}", "a".repeat(LISTED_CHARS_MAX - 1), "b".repeat(LISTED_CHARS_MAX - 1));
        check(&parted, &"a".repeat(LISTED_CHARS_MAX - 1), &"b".repeat(LISTED_CHARS_MAX - 1));
    }
}
