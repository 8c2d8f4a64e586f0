//! The real server, from outside: its command line, its clients, its end.

mod admission;
mod agents;
mod bad_models;
mod command_line;
mod dialects;
mod ends;
mod javascript;
mod kv_schemes;
mod sampling;
mod structure;
