//! `cargo xtask bench`: our engine beside mlx-lm, on the same weights, back end and BLAS. The two
//! decode in turns, so that a machine that slows down slows both. Then one server is looked at
//! over HTTP: how fast it is ready, how long a late request waits, what a full one still does in time,
//! and what it costs when idle.

mod late;
mod pressure;
mod server;
mod soak;

use std::path::PathBuf;

use anyhow::Result;

use self::server::{IDLE_SECONDS, Server};
use crate::figures::{Figures, Serving, collect, parse_cells};
use crate::process::Task;
use crate::stamp::{create_folder, write_whole};
use crate::workspace::Workspace;
use crate::{model, setup, venv};

/// What both engines are told to decode.
const DECODE: [&str; 6] = ["--batch", "1,4,8", "--prompt-tokens", "64", "--tokens", "64"];

/// What the benchmark works with.
struct Bench {
    server: PathBuf,
    model: PathBuf,
    python: PathBuf,
    script: PathBuf,
    /// Where logs and results go.
    folder: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, yes: bool, rounds: usize, soak: bool) -> Result<()> {
    let bench = Bench::ready(workspace, yes)?;
    if soak {
        return soak::run(&bench);
    }
    let figures = bench.measure(rounds)?;
    println!("\n{}", figures.table());
    let latest = bench.folder.join("latest.json");
    write_whole(&latest, &format!("{:#}\n", figures.json()))?;
    println!("\nWritten to `{}`", latest.display());
    Ok(())
}

impl Bench {
    fn ready(workspace: &Workspace, yes: bool) -> Result<Self> {
        let _lock = workspace.lock()?;
        setup::build(workspace, yes)?;
        let server = setup::server(workspace)?;
        let folder = workspace.target()?.join("bench");
        create_folder(&folder)?;
        Ok(Self {
            model: model::ready(workspace, &server)?,
            python: venv::ORACLE.ready(workspace)?,
            script: workspace.root().join("xtask/bench/mlx_lm_decode.py"),
            server,
            folder,
        })
    }

    fn measure(&self, rounds: usize) -> Result<Figures> {
        let (mut ours, mut mlx_lm) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            eprintln!("Round {round} of {rounds}: decode, mlx-lm");
            mlx_lm.push(self.mlx_lm_decode()?);
            eprintln!("Round {round} of {rounds}: decode, slipstream");
            ours.push(self.our_decode()?);
        }
        let serving = self.serving(rounds)?;
        Ok(Figures { ours: collect(&ours)?, mlx_lm: collect(&mlx_lm)?, serving })
    }

    fn mlx_lm_decode(&self) -> Result<Vec<(u64, f64)>> {
        let task = Task::new("measure mlx-lm", &self.python).arg(&self.script);
        parse_cells(&task.arg("--model").arg(&self.model).args(DECODE).capture()?)
    }

    fn our_decode(&self) -> Result<Vec<(u64, f64)>> {
        let task = Task::new("measure slipstream", &self.server).args(["bench", "--model"]);
        parse_cells(&task.arg(&self.model).args(DECODE).arg("--json").capture()?)
    }

    fn serving(&self, rounds: usize) -> Result<Serving> {
        let mut serving =
            Serving { ready_seconds: vec![], late: vec![], idle_percent: None, pressure: None };
        for round in 1..=rounds {
            eprintln!("Round {round} of {rounds}: serving");
            let (server, ready_seconds) = Server::start(self)?;
            serving.ready_seconds.push(ready_seconds);
            serving.late.push(late::late_request(server.port)?);
            if round == rounds {
                eprintln!("Putting the server under pressure");
                serving.pressure = Some(pressure::pressure(server.port)?);
                eprintln!("Watching the idle server for {IDLE_SECONDS} s");
                serving.idle_percent = server.idle_percent();
            }
        }
        Ok(serving)
    }
}
