//! The headless engine: `slipstream serve`, `ls`, `rm`, `fit`, `get`, `search`, `token`, `import`, `convert`, `bench`.
//!
//! Exit codes: 0 after an orderly end, 2 for anything the caller can fix (one line on stderr says
//! what was attempted, the value and what to do).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

mod bench;
mod convert;
mod fit;
mod get;
mod import;
mod library;
mod load;
mod sampling;
mod search;
mod serve;
mod token;

use clap::{Parser, Subcommand};
use slipstream_engine::mlx;

/// Continuous-batching LLM inference on MLX, behind OpenAI-compatible HTTP.
#[derive(Debug, Parser)]
#[command(name = "slipstream", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over HTTP.
    Serve(Box<serve::Arguments>),
    /// List the models on this machine.
    Ls(library::ListArguments),
    /// Remove a model from this machine.
    Rm(library::RemoveArguments),
    /// Tell whether a model fits this machine, and how long conversations may get.
    Fit(fit::Arguments),
    /// Fetch a model from the hub, or go on fetching it.
    Get(get::Arguments),
    /// Look for models at the hub.
    Search(search::Arguments),
    /// Keep the token that opens gated and private repositories.
    Token(token::Arguments),
    /// Turn a GGUF file into a model directory.
    Import(import::Arguments),
    /// Quantize a model directory.
    Convert(convert::Arguments),
    /// Measure decode speed on this machine.
    Bench(Box<bench::Arguments>),
    /// The clients of a bench, in a process of their own.
    #[command(hide = true)]
    BenchClients(bench::ClientArguments),
    /// Measure how long a scan of many models takes.
    #[command(hide = true)]
    BenchScan(bench::ScanArguments),
}

fn main() -> ! {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Ls(arguments) => library::list(&arguments),
        Command::Rm(arguments) => library::remove(&arguments),
        Command::Fit(arguments) => fit::run(&arguments),
        Command::Get(arguments) => get::run(arguments),
        Command::Search(arguments) => search::run(&arguments),
        Command::Token(arguments) => token::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Bench(mut arguments) => arguments.resolve().and_then(|()| bench::run(&arguments)),
        Command::BenchClients(arguments) => bench::run_clients(&arguments),
        Command::BenchScan(arguments) => bench::run_scan(&arguments),
    };
    let code = outcome.map_or_else(
        |error| {
            eprintln!("slipstream: {error}");
            2
        },
        |()| 0,
    );
    mlx::leave(code)
}
