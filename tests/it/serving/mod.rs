//! The real server, from outside: its command line, its clients, its end.

mod admission;
mod agents;
mod bad_models;
mod bench;
mod claude_code;
mod command_line;
mod convert;
mod dialects;
mod embeddings;
mod ends;
mod javascript;
mod kept_prompts;
mod kv_schemes;
mod library;
mod models;
mod sampling;
mod structure;
