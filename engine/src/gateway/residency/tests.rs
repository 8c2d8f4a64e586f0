//! The state machine beside a naive one, and the whole residency over a scripted host.

mod edge;
mod fuzz;
