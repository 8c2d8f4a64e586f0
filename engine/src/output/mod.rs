//! From text to what the client hears: text in, parts of an answer out.
//!
//! - [`AnswerParser`] splits the text into reasoning, visible text and tool calls, in the
//!   [`AnswerFormat`] of the model.
//! - [`StopMatcher`] then ends the visible text where the request said it ends.

mod calls;
mod detect;
mod flow;
mod format;
mod markers;
mod messages;
mod parser;
mod part;
mod stops;
mod tool;

pub use format::{AnswerFormat, MessageFormat, ReasoningFormat, ToolFormat};
pub use parser::{AnswerParser, Beginning, ParserOptions, TextEnd};
pub use part::{AnswerPart, FoldedAnswer, FoldedCall};
pub use stops::{StopMatcher, StopOutput};
pub use tool::Tool;

#[cfg(test)]
mod tests;
