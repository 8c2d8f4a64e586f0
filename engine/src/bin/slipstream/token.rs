//! `slipstream token`: the token that opens gated and private repositories.

use std::io::{BufRead, IsTerminal};

use clap::Subcommand;
use console::Term;
use slipstream_engine::error::Result;
use slipstream_engine::hub::token::{Token, TokenStore, find_token};

/// What `slipstream token` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keep a token, which is read from the terminal or from stdin: in the keychain on macOS, in a
    /// file for this user alone elsewhere.
    Set,
    /// Forget the token that was kept.
    Rm,
    /// Say where the token in use comes from, without showing it.
    Status,
}

/// Keeps or forgets the token, or says where there is one.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match arguments.command {
        Command::Set => {
            TokenStore::of_process().set(&Token::parse(&read()?)?)?;
            println!("the token is kept in {}", TokenStore::NAME);
        }
        Command::Rm => match TokenStore::of_process().remove()? {
            true => println!("the token is forgotten"),
            false => println!("no token was kept"),
        },
        Command::Status => match find_token()? {
            Some((_, source)) => println!("the token comes from {source}"),
            None => println!("there is no token"),
        },
    }
    Ok(())
}

/// A line that a terminal does not show while it is typed.
fn read() -> Result<String> {
    if std::io::stdin().is_terminal() {
        eprint!("token: ");
        return Ok(Term::stderr().read_secure_line()?);
    }
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}
