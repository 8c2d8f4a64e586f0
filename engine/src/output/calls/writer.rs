//! Tool calls as they are told: their indexes, ids and pieces.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::output::part::AnswerPart;
use crate::output::tool::Tool;

/// In which form a family's template wants the ids of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::output) enum IdForm {
    /// `call_` and 24 letters and digits, as OpenAI's.
    #[default]
    Long,
    /// Nine letters and digits: Mistral's templates refuse others.
    Nine,
    /// `functions.NAME:INDEX`: Kimi K2 counts its calls in this form.
    Counted,
}

/// Tells an answer's parts, in order; neighbouring pieces of one kind become one part.
#[derive(Debug)]
pub(in crate::output) struct Writer {
    parts: Vec<AnswerPart>,
    tools: Arc<[Tool]>,
    id_form: IdForm,
    id_seed: String,
    /// Of the calls that were started.
    ids: Vec<String>,
    ended: usize,
    open: bool,
    known_only: bool,
}

impl Writer {
    pub(in crate::output) fn new(tools: Arc<[Tool]>, id_form: IdForm, id_seed: String) -> Self {
        Self {
            parts: Vec::new(),
            tools,
            id_form,
            id_seed,
            ids: Vec::new(),
            ended: 0,
            open: false,
            known_only: false,
        }
    }

    /// The parts since the last time.
    pub(in crate::output) fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.parts)
    }

    pub(in crate::output) fn reasoning(&mut self, text: String) {
        if !text.is_empty() {
            AnswerPart::join(&mut self.parts, AnswerPart::Reasoning(text));
        }
    }

    pub(in crate::output) fn text(&mut self, text: String) {
        if !text.is_empty() {
            AnswerPart::join(&mut self.parts, AnswerPart::Text(text));
        }
    }

    /// Whether only calls of tools that the request has are calls.
    pub(in crate::output) fn known_only(&mut self, known_only: bool) {
        self.known_only = known_only;
    }

    /// Starts a call of `name`, with the model's own `id` if it gave one that no other call has. `false` when it
    /// is none, because it was `bare`, which only calls of tools that the request has may be.
    #[must_use]
    pub(super) fn start(&mut self, name: &str, id: Option<String>, bare: bool) -> bool {
        if name.is_empty() || ((bare || self.known_only) && self.tool(name).is_none()) {
            return false;
        }
        let index = self.ids.len();
        let is_new = |id: &String| !id.is_empty() && !self.ids.contains(id);
        let made = || (index..).map(|index| self.new_id(name, index)).find(is_new);
        let id = id.filter(is_new).or_else(made).unwrap_or_default();
        self.ids.push(id.clone());
        self.parts.push(AnswerPart::ToolCallStarted { index, id, name: name.to_owned() });
        self.open = true;
        true
    }

    /// Tells more of the open call's arguments.
    pub(super) fn arguments(&mut self, json: &str) {
        if json.is_empty() || !self.open {
            return;
        }
        let (index, json) = (self.ids.len() - 1, json.to_owned());
        AnswerPart::join(&mut self.parts, AnswerPart::ToolCallArguments { index, json });
    }

    /// Ends the open call.
    pub(super) fn end(&mut self) {
        if self.open {
            self.open = false;
            self.ended += 1;
            self.parts.push(AnswerPart::ToolCallEnded { index: self.ids.len() - 1 });
        }
    }

    /// Gives up the open call, which so has no end.
    pub(in crate::output) fn abandon(&mut self) {
        self.open = false;
    }

    /// Whether a call was started and not ended.
    pub(in crate::output) fn is_open(&self) -> bool {
        self.open
    }

    /// Calls that were ended.
    pub(in crate::output) fn ended(&self) -> usize {
        self.ended
    }

    /// The tool of this name, if the request has it.
    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    fn new_id(&self, name: &str, index: usize) -> String {
        match self.id_form {
            IdForm::Long => format!("call_{}", self.letters(index, 24)),
            IdForm::Nine => self.letters(index, 9),
            IdForm::Counted => format!("functions.{name}:{index}"),
        }
    }

    /// Letters and digits that follow from the seed and the index.
    fn letters(&self, index: usize, count: u64) -> String {
        const LETTERS: &[u8; 62] =
            b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        let letter = |place: u64| {
            let mut hasher = DefaultHasher::new();
            (&self.id_seed, index, place).hash(&mut hasher);
            char::from(LETTERS[(hasher.finish() % 62) as usize])
        };
        (0..count).map(letter).collect()
    }
}
