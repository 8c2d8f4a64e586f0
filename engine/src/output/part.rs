//! The parts of an answer, and what they come to.

/// A piece of an answer, in the order in which the model says it. Texts are never empty.
///
/// A call is started once, has arguments in any number of pieces and is ended at most once, and no two
/// calls overlap. The pieces of an ended call concatenate to one JSON object. Those of a call that was
/// started and never ended (the answer was cut, or turned out to be no call) are no whole JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    /// The model thinks.
    Reasoning(String),
    /// The visible answer.
    Text(String),
    /// The model calls a tool.
    ToolCallStarted {
        /// Calls of an answer count from 0.
        index: usize,
        /// Unique among the calls of a conversation, in the form that the model's template takes.
        id: String,
        /// The tool's name, as the model says it.
        name: String,
    },
    /// The next piece of the call's arguments.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// A piece of a JSON object's text.
        json: String,
    },
    /// The call's arguments are complete.
    ToolCallEnded {
        /// Which call.
        index: usize,
    },
}

impl AnswerPart {
    /// Puts `more` behind `parts`; neighbouring pieces of one kind become one.
    pub fn join(parts: &mut Vec<Self>, more: Self) {
        match (parts.last_mut(), more) {
            (Some(Self::Reasoning(before)), Self::Reasoning(more))
            | (Some(Self::Text(before)), Self::Text(more))
            | (
                Some(Self::ToolCallArguments { json: before, .. }),
                Self::ToolCallArguments { json: more, .. },
            ) => before.push_str(&more),
            (_, more) => parts.push(more),
        }
    }
}

/// A whole answer: parts folded in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoldedAnswer {
    /// All reasoning.
    pub reasoning: String,
    /// All visible text.
    pub text: String,
    /// All calls, in the order of their indexes.
    pub calls: Vec<FoldedCall>,
}

/// One tool call of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedCall {
    /// Its place among all calls that were started.
    pub index: usize,
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The text of a JSON object; cut off when the call did not end.
    pub arguments: String,
    /// Whether the arguments are complete.
    pub ended: bool,
}

impl FoldedAnswer {
    /// Takes the next part.
    pub fn push(&mut self, part: AnswerPart) {
        match part {
            AnswerPart::Reasoning(text) => self.reasoning.push_str(&text),
            AnswerPart::Text(text) => self.text.push_str(&text),
            AnswerPart::ToolCallStarted { index, id, name } => {
                let arguments = String::new();
                self.calls.push(FoldedCall { index, id, name, arguments, ended: false });
            }
            AnswerPart::ToolCallArguments { index, json } => {
                self.call(index, |call| call.arguments.push_str(&json));
            }
            AnswerPart::ToolCallEnded { index } => self.call(index, |call| call.ended = true),
        }
    }

    fn call(&mut self, index: usize, change: impl FnOnce(&mut FoldedCall)) {
        if let Some(call) = self.calls.iter_mut().rfind(|call| call.index == index) {
            change(call);
        }
    }
}

impl Extend<AnswerPart> for FoldedAnswer {
    fn extend<I: IntoIterator<Item = AnswerPart>>(&mut self, parts: I) {
        parts.into_iter().for_each(|part| self.push(part));
    }
}

impl FromIterator<AnswerPart> for FoldedAnswer {
    fn from_iter<I: IntoIterator<Item = AnswerPart>>(parts: I) -> Self {
        let mut folded = Self::default();
        folded.extend(parts);
        folded
    }
}
