//! From a validated request to a row and back: placement, submission, cancellation, the
//! [`Engine`](crate::gateway) facade.

mod driver;
mod rows;

pub use driver::RowThread;
pub use rows::{Health, Rows};
