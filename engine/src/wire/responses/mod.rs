//! OpenAI's responses: items in, items out, and a memory between them.
//!
//! A **response** is one answer, whose *items* are reasoning, messages and function calls. A request's
//! *past* is what earlier responses left here: their conversation by `previous_response_id`, and single
//! items by reference.

mod input;
mod items;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use items::Item;
pub use reply::{DeletedBody, Response, ResponseTeller};
pub use request::{Past, ResponseRequest, response};
