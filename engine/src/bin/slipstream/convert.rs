//! `slipstream convert`: a checkpoint becomes a quantized one that `slipstream serve` and mlx-lm load.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slipstream_engine::error::Result;
use slipstream_engine::hub::WeightDtype;
use slipstream_engine::hub::convert::{ConvertOptions, ConvertProgress, convert};
use slipstream_engine::hub::jobs::PROGRESS_WORD;
use slipstream_engine::mlx::Device;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::import::megabytes;

/// What `slipstream convert` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The model directory to convert.
    source: PathBuf,
    /// The directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Bits of a packed number: 4 or 8.
    #[arg(long)]
    bits: i32,
    /// Numbers that share a scale: 32, 64 or 128.
    #[arg(long, value_name = "N", default_value_t = 64)]
    group_size: i32,
    /// Tell how far it is in lines on stdout, for programs.
    #[arg(long, hide = true)]
    progress: bool,
    /// The type of what stays dense: f32, bf16 or f16; else the one that the model's config names.
    #[arg(long)]
    dtype: Option<WeightDtype>,
}

/// Converts the checkpoint and says what came of it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let options = ConvertOptions::new(arguments.bits, arguments.group_size, arguments.dtype)?;
    let stopped = Stopped::listen()?;
    Device::select()?;
    let shown = std::io::stderr().is_terminal();
    let mut show = |progress| {
        if shown {
            eprint!("\r{}", line(progress));
        }
        if arguments.progress {
            let ConvertProgress { done_bytes, total_bytes } = progress;
            println!("{PROGRESS_WORD} {done_bytes} {total_bytes}");
        }
        stopped.verdict()
    };
    let outcome = convert(&arguments.source, &arguments.out, &options, &mut show);
    if shown {
        eprintln!();
    }
    let converted = outcome?;
    println!(
        "converted {} ({}, {} matrices in {} bits, {})",
        converted.directory.display(),
        converted.model_type,
        converted.packed_matrices,
        arguments.bits,
        megabytes(converted.weight_bytes),
    );
    Ok(())
}

/// Whether SIGINT or SIGTERM came. Then the conversion ends by itself, and clears what it wrote.
struct Stopped {
    came: Arc<AtomicBool>,
    _listening: Runtime,
}

impl Stopped {
    fn listen() -> Result<Self> {
        let listening =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build()?;
        let came = Arc::new(AtomicBool::new(false));
        let guard = listening.enter();
        let mut signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
        drop(guard);
        let noted = Arc::clone(&came);
        listening.spawn(async move {
            let [interrupt, terminate] = &mut signals;
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            noted.store(true, Ordering::Relaxed);
        });
        Ok(Self { came, _listening: listening })
    }

    fn verdict(&self) -> ControlFlow<()> {
        match self.came.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

fn line(ConvertProgress { done_bytes, total_bytes }: ConvertProgress) -> String {
    format!("converting weights: {} of {}", megabytes(done_bytes), megabytes(total_bytes))
}
