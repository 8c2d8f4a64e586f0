//! From text to what the client sees: text in, events out.
//!
//! So far that is stop strings: [`StopMatcher`] ends a row's text where the request said it ends.

mod stops;

pub use stops::{StopMatcher, StopOutput};
