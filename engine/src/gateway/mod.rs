//! From a validated request to a row and back: placement, submission, cancellation, the
//! [`Engine`](crate::gateway) facade.

mod rows;

pub use rows::{Health, Rows};
