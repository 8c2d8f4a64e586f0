//! `cargo xtask <verb>`: everything around the engine. It knows neither MLX nor the engine's code:
//! it prepares the machine, starts cargo and the `slipstream` binary, and says what went wrong.
//!
//! Every step of the set-up can be repeated and interrupted: what is done is marked by a stamp
//! with the hash of its inputs ([`stamp`]), and what is not done lies under a name that ends in
//! `.partial`. [`setup`] lists the steps, each verb names those it needs.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to people by printing"
)]

mod bench;
mod clock;
mod fetch;
mod figures;
mod goldens;
mod http;
#[cfg(target_os = "linux")]
mod mlx;
mod model;
mod node;
mod packages;
mod process;
mod serve;
mod setup;
mod stamp;
mod test;
mod venv;
mod workspace;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Set-up, serve, test, bench and goldens.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set everything up and serve the demo model.
    Serve {
        /// Install missing system packages without asking.
        #[arg(long)]
        yes: bool,
        /// Flags of `slipstream serve`, such as `--port 9000`; see `cargo xtask serve -- --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Set everything up and run every check.
    Test {
        /// Install missing system packages without asking.
        #[arg(long)]
        yes: bool,
    },
    /// Make plain `cargo build` and `cargo test` work: system packages and MLX.
    Setup {
        /// Install missing system packages without asking.
        #[arg(long)]
        yes: bool,
        /// Also what the other verbs need: the server, the demo model, the Python environments.
        #[arg(long)]
        all: bool,
    },
    /// Have mlx-lm write the fixtures that our tests compare with.
    Goldens {
        /// Install missing system packages without asking.
        #[arg(long)]
        yes: bool,
    },
    /// Measure us beside mlx-lm.
    Bench {
        /// Install missing system packages without asking.
        #[arg(long)]
        yes: bool,
        /// What to measure.
        #[arg(value_enum, default_value = "engine")]
        subject: bench::Subject,
        /// How often everything is measured; the medians count.
        #[arg(long, default_value = "3", value_parser = clap::value_parser!(u16).range(1..))]
        rounds: u16,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    let workspace = Workspace::find()?;
    match verb {
        Verb::Serve { yes, flags } => serve::run(&workspace, yes, flags),
        Verb::Test { yes } => test::run(&workspace, yes),
        Verb::Setup { yes, all } => setup::run(&workspace, yes, all),
        Verb::Goldens { yes } => goldens::run(&workspace, yes),
        Verb::Bench { yes, subject, rounds } => bench::run(&workspace, yes, rounds.into(), subject),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn serve_flags(words: &[&str]) -> (bool, Vec<OsString>) {
        let words = ["xtask", "serve"].iter().chain(words);
        match Arguments::try_parse_from(words).unwrap().verb {
            Verb::Serve { yes, flags } => (yes, flags),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn serve_passes_on_what_it_does_not_know_with_or_without_dashes_before() {
        let expected: Vec<OsString> = vec!["--port".into(), "9000".into(), "--batch=4".into()];
        for words in [&["--port", "9000", "--batch=4"][..], &["--", "--port", "9000", "--batch=4"]]
        {
            assert_eq!(serve_flags(words), (false, expected.clone()), "{words:?}");
        }
        assert_eq!(serve_flags(&["--yes", "--port", "9000", "--batch=4"]), (true, expected));
        assert_eq!(serve_flags(&[]), (false, vec![]));
    }

    #[test]
    fn a_verb_without_rounds_is_refused() {
        assert!(Arguments::try_parse_from(["xtask", "bench", "--rounds", "0"]).is_err());
        assert!(Arguments::try_parse_from(["xtask", "test", "--port", "1"]).is_err());
    }
}
