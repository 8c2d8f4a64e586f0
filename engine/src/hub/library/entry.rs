//! One model in one place.

use std::path::PathBuf;

use crate::error::{Code, Error, Result};
use crate::model::outline::{Outline, WeightTally};

/// One model in one place.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What it is called: `owner/name`, the name of a folder, and with `@` and more behind it where another
    /// entry has that already.
    pub id: String,
    /// The directory that the loader takes.
    pub directory: PathBuf,
    /// Whose folder that is in.
    pub origin: Origin,
    /// The commit of its repository, where that is known.
    pub commit: Option<String>,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Whether it can be served.
    pub state: State,
    /// What its files say, as far as they could be read.
    pub facts: Option<Facts>,
}

/// Whose folder a model is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Our folder of models.
    Own,
    /// A cache of Hugging Face's tools.
    HuggingFace,
}

impl Origin {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::HuggingFace => "hugging_face",
        }
    }
}

/// Whether an entry can be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Every file is there and whole.
    Ready,
    /// Files are missing or cut short: these.
    Incomplete(Vec<String>),
    /// It is whole as far as is known, and of a kind that is not run: the reason.
    Unsupported(String),
    /// A file is not what it should be: the reason.
    Damaged(String),
}

impl State {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Incomplete(_) => "incomplete",
            Self::Unsupported(_) => "unsupported",
            Self::Damaged(_) => "damaged",
        }
    }

    /// What keeps the entry from being served; `None` when nothing does.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Ready => None,
            Self::Incomplete(missing) => Some(format!("missing: {}", missing.join(", "))),
            Self::Unsupported(reason) | Self::Damaged(reason) => Some(reason.clone()),
        }
    }
}

/// What the files of a model say.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The model as its config describes it.
    pub outline: Outline,
    /// Its weights as the headers describe them.
    pub weights: WeightTally,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// What a model can do, as far as its files tell without its tokenizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It has a chat template.
    pub chats: bool,
    /// It writes tool calls in a format that is known.
    pub tools: bool,
    /// It reasons in a format that is known.
    pub reasons: bool,
    /// It makes vectors of texts, and answers nothing.
    pub embeds: bool,
}

impl Capabilities {
    /// What it can, in one word each.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.chats, "chat"),
            (self.tools, "tools"),
            (self.reasons, "reasoning"),
            (self.embeds, "embeddings"),
        ];
        all.into_iter().filter(|(can, _)| *can).map(|(_, name)| name).collect()
    }
}

impl Entry {
    /// The last part of its id, by which it can be called too where no other entry has the same.
    pub fn short_name(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or(&self.id)
    }

    /// # Errors
    /// `BadModel` saying what keeps the entry from being served.
    pub fn check_ready(&self) -> Result<()> {
        let Some(reason) = self.state.reason() else { return Ok(()) };
        let state = self.state.name();
        let error = Error::new(Code::BadModel, format!("`{}` is {state}: {reason}", self.id));
        Err(match self.state {
            State::Incomplete(_) | State::Damaged(_) => error.with_hint("fetch it again"),
            State::Ready | State::Unsupported(_) => error,
        })
    }
}
