//! What rows leave behind for rows to come that begin with the same tokens.

pub mod disk;
