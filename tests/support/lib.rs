//! What the tests of the workspace share: a scripted model, clients in memory, seeded choices and
//! the sources of the repository as text.

pub mod client;
pub mod demo;
pub mod fleet;
pub mod goldens;
pub mod grammar;
pub mod hub;
#[cfg(feature = "mlx")]
pub mod logits;
pub mod random;
pub mod script;
pub mod server;
pub mod sources;
