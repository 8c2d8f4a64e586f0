//! `cargo xtask bench`: our engine beside mlx-lm, on the same weights, back end and BLAS. The two
//! decode in turns, so that a machine that slows down slows both, the demo model and one whose steps
//! are almost the host's work alone. Then the engine is set against itself: one row in each of its
//! lanes, and batches with and without a joining row. Then one server is looked at
//! over HTTP: how fast it is ready, how long a late request waits, what a full one still does in time,
//! and what it costs when idle.

mod cache;
mod hub;
mod hub_scan;
mod late;
mod models;
mod pressure;
mod residency;
mod scripted;
mod server;
mod soak;

use std::path::{Path, PathBuf};

use anyhow::Result;

use self::server::{IDLE_SECONDS, Server};
use crate::figures::{Decode, Engine, Figures, Reading, Serving, parse_cells};
use crate::process::Task;
use crate::stamp::{create_folder, fresh_partial, remove_if_there, rename, write_whole};
use crate::workspace::Workspace;
use crate::{model, setup, venv};

/// What both engines are told to decode, of each batch size.
const DECODE: [&str; 4] = ["--prompt-tokens", "64", "--tokens", "64"];

/// The batch sizes of the demo model.
const BATCH: &str = "1,4,8";

/// The batch size at which the host's part of a step is measured on a model without width.
const NARROW_BATCH: &str = "8";

/// What the benchmark works with.
struct Bench {
    server: PathBuf,
    model: PathBuf,
    python: PathBuf,
    /// Of the scripts.
    scripts: PathBuf,
    /// Where logs and results go.
    folder: PathBuf,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Subject {
    /// Decoding, lanes, joins and serving, with the demo model.
    Engine,
    /// The host's part of a step, of every family's tiny checkpoint.
    Models,
    /// What HTTP costs beyond the engine, on a scripted model, and token masks.
    Serving,
    /// What kept prompts spare, in memory and on disk, beside mlx-lm's server.
    Cache,
    /// What it costs to have models: fetching one, beside curl, and learning which ones there are.
    Hub,
    /// Memory after thousands of requests, many of which leave.
    Soak,
    /// Whether models come and go for minutes without a lost request or a byte left behind.
    Residency,
}

pub(crate) fn run(workspace: &Workspace, yes: bool, rounds: usize, subject: Subject) -> Result<()> {
    let bench = Bench::ready(workspace, yes)?;
    match subject {
        Subject::Engine => bench.run(rounds),
        Subject::Models => models::run(&bench, workspace.root(), rounds),
        Subject::Serving => scripted::run(&bench),
        Subject::Cache => cache::run(&bench),
        Subject::Hub => hub::run(&bench, rounds).and_then(|()| hub_scan::run(&bench)),
        Subject::Soak => soak::run(&bench),
        Subject::Residency => residency::run(&bench, workspace.root()),
    }
}

impl Bench {
    fn run(&self, rounds: usize) -> Result<()> {
        let figures = self.measure(rounds)?;
        println!("\n{}", figures.table());
        let latest = self.folder.join("latest.json");
        write_whole(&latest, &format!("{:#}\n", figures.json()))?;
        println!("\nWritten to `{}`", latest.display());
        Ok(())
    }

    fn ready(workspace: &Workspace, yes: bool) -> Result<Self> {
        let _lock = workspace.lock()?;
        setup::build(workspace, yes)?;
        let server = setup::server(workspace)?;
        let folder = workspace.target()?.join("bench");
        create_folder(&folder)?;
        Ok(Self {
            model: model::DEMO.ready(workspace, &server)?,
            python: venv::ORACLE.ready(workspace)?,
            scripts: workspace.root().join("xtask/bench"),
            server,
            folder,
        })
    }

    fn measure(&self, rounds: usize) -> Result<Figures> {
        eprintln!("Decoding the demo model");
        let decode = self.decode(&self.model, BATCH, rounds)?;
        eprintln!("Decoding a model of 28 layers without width");
        let narrow = self.decode(&self.narrow_model()?, NARROW_BATCH, rounds)?;
        eprintln!("Comparing lanes, and timing joins");
        let engine = self.engine()?;
        let serving = self.serving(rounds)?;
        Ok(Figures { decode, narrow, engine, serving })
    }

    fn decode(&self, model: &Path, batch: &str, rounds: usize) -> Result<Decode> {
        let (mut ours, mut mlx_lm) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            eprintln!("Round {round} of {rounds}: decode, mlx-lm");
            mlx_lm.push(self.mlx_lm_decode(model, batch)?);
            eprintln!("Round {round} of {rounds}: decode, slipstream");
            ours.push(self.our_decode(model, batch)?);
        }
        Decode::collect(&ours, &mlx_lm)
    }

    fn mlx_lm_decode(&self, model: &Path, batch: &str) -> Result<Vec<Reading>> {
        let task = self.script("measure mlx-lm", "mlx_lm_decode.py").arg("--model").arg(model);
        parse_cells(&task.args(["--batch", batch]).args(DECODE).capture()?)
    }

    fn our_decode(&self, model: &Path, batch: &str) -> Result<Vec<Reading>> {
        let task = self.slipstream_bench(model).args(["--batch", batch]);
        parse_cells(&task.args(DECODE).capture()?)
    }

    fn engine(&self) -> Result<Engine> {
        let task = self.slipstream_bench(&self.model).args(["--figures", "lanes,joins"]);
        // Short runs: what else happens on the machine then meets both sides of a pair alike.
        let short = ["--prompt-tokens", "64", "--tokens", "24", "--repeats", "15"];
        Engine::parse(&task.args(short).capture()?)
    }

    /// A checkpoint whose steps compute next to nothing, made anew.
    fn narrow_model(&self) -> Result<PathBuf> {
        let directory = self.folder.join("host-28");
        let partial = fresh_partial(&directory)?;
        let task = self.script("write a checkpoint", "host_checkpoint.py");
        task.arg("--out").arg(&partial).capture()?;
        remove_if_there(&directory)?;
        rename(&partial, &directory)?;
        Ok(directory)
    }

    fn script(&self, attempt: &str, name: &str) -> Task {
        Task::new(attempt, &self.python).arg(self.scripts.join(name))
    }

    fn slipstream_bench(&self, model: &Path) -> Task {
        let task = Task::new("measure slipstream", &self.server).args(["bench", "--json"]);
        task.arg("--model").arg(model)
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
