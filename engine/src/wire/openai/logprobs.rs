//! Log-probabilities in OpenAI's two shapes.
//!
//! A token whose bytes are no text by themselves is written with `\x` and two hexadecimal digits for each
//! byte that is none, in completions after the word `bytes:`, as OpenAI does it.

use serde::{Serialize, Serializer};

use super::ReplyKind;
use crate::gateway::{LogprobEntry, TokenLogprob};
use crate::tokenizer::TokenText;

/// OpenAI's number for what is too unlikely to tell, and JSON's way to say minus infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// The `logprobs` of a choice.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Logprobs {
    Chat { content: Vec<ChatEntry>, refusal: Option<()> },
    Completion(CompletionEntries),
}

/// What is known of one token, as chats tell it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(in crate::wire) struct ChatEntry {
    #[serde(flatten)]
    token: ChatToken,
    top_logprobs: Vec<ChatToken>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ChatToken {
    token: String,
    logprob: f32,
    /// None for a token that contributes to no text.
    bytes: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct CompletionEntries {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<ByText>,
    /// Characters of the text before the token.
    text_offset: Vec<usize>,
}

/// The most likely tokens, and the one that was generated, by their texts; an object. Of two with one text
/// the first is told.
#[derive(Debug, Clone)]
struct ByText(Vec<(String, f32)>);

impl Serialize for ByText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

impl Logprobs {
    /// What `entries` say, in order.
    pub(super) fn new(kind: ReplyKind, entries: &[LogprobEntry]) -> Self {
        match kind {
            ReplyKind::Chat => {
                Self::Chat { content: entries.iter().map(ChatEntry::from).collect(), refusal: None }
            }
            ReplyKind::Completion => {
                let mut told = CompletionEntries::default();
                entries.iter().for_each(|entry| told.push(entry));
                Self::Completion(told)
            }
        }
    }
}

impl ChatEntry {
    /// The same with bytes for every token, none where it contributes to no text.
    pub(in crate::wire) fn with_bytes(mut self) -> Self {
        for token in self.top_logprobs.iter_mut().chain([&mut self.token]) {
            token.bytes.get_or_insert_default();
        }
        self
    }
}

impl From<&LogprobEntry> for ChatEntry {
    fn from(entry: &LogprobEntry) -> Self {
        let top_logprobs = entry.top.iter().map(ChatToken::from).collect();
        Self { token: ChatToken::from(&entry.token), top_logprobs }
    }
}

impl From<&TokenLogprob> for ChatToken {
    fn from(token: &TokenLogprob) -> Self {
        let bytes = (!token.text.special).then(|| token.text.bytes.clone());
        Self { token: escaped(&token.text), logprob: told(token.logprob), bytes }
    }
}

impl CompletionEntries {
    fn push(&mut self, entry: &LogprobEntry) {
        let text = |token: &TokenLogprob| match std::str::from_utf8(&token.text.bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("bytes:{}", escaped(&token.text)),
        };
        let mut top: Vec<(String, f32)> = Vec::with_capacity(entry.top.len() + 1);
        for token in entry.top.iter().chain([&entry.token]) {
            let text = text(token);
            if top.iter().all(|(known, _)| *known != text) {
                top.push((text, told(token.logprob)));
            }
        }
        self.tokens.push(text(&entry.token));
        self.token_logprobs.push(told(entry.token.logprob));
        self.top_logprobs.push(ByText(top));
        self.text_offset.push(entry.text_offset);
    }
}

/// A number that JSON has.
fn told(logprob: f32) -> f32 {
    logprob.max(LOGPROB_MIN)
}

fn escaped(text: &TokenText) -> String {
    let mut escaped = String::new();
    for chunk in text.bytes.utf8_chunks() {
        escaped.push_str(chunk.valid());
        escaped.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(bytes: &[u8], logprob: f32) -> TokenLogprob {
        let text = TokenText { bytes: bytes.to_vec(), special: bytes.starts_with(b"<|") };
        TokenLogprob { id: 0, text, logprob }
    }

    fn entries() -> Vec<LogprobEntry> {
        let euro = "a€".as_bytes();
        vec![
            LogprobEntry {
                token: token(b" b", -0.5),
                top: vec![token(b"<|end|>", -0.25), token(b" b", -0.5)],
                text_offset: 0,
                visible: true,
            },
            LogprobEntry {
                token: token(&euro[..3], -1.5),
                top: vec![token(b"c", f32::NEG_INFINITY)],
                text_offset: 2,
                visible: true,
            },
        ]
    }

    #[test]
    fn a_chat_tells_bytes_and_the_completions_api_offsets() {
        let chat = json!({"refusal": null, "content": [
            {"token": " b", "logprob": -0.5, "bytes": [32, 98], "top_logprobs": [
                {"token": "<|end|>", "logprob": -0.25, "bytes": null},
                {"token": " b", "logprob": -0.5, "bytes": [32, 98]},
            ]},
            {"token": "a\\xe2\\x82", "logprob": -1.5, "bytes": [97, 226, 130], "top_logprobs": [
                {"token": "c", "logprob": -9999.0, "bytes": [99]},
            ]},
        ]});
        let told = |kind| serde_json::to_value(Logprobs::new(kind, &entries())).unwrap();
        assert_eq!(told(ReplyKind::Chat), chat);
        let completion = json!({
            "tokens": [" b", "bytes:a\\xe2\\x82"], "token_logprobs": [-0.5, -1.5],
            "top_logprobs": [
                {"<|end|>": -0.25, " b": -0.5}, {"c": -9999.0, "bytes:a\\xe2\\x82": -1.5},
            ],
            "text_offset": [0, 2],
        });
        assert_eq!(told(ReplyKind::Completion), completion);
    }
}
