//! `slipstream import`: a GGUF file becomes a directory that `slipstream serve` and mlx-lm load.

use std::io::IsTerminal;
use std::path::PathBuf;

use slipstream_engine::error::Result;
use slipstream_engine::hub::import::{ImportProgress, WeightDtype, import};

/// What `slipstream import` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The GGUF file.
    file: PathBuf,
    /// The directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The type to write weights in: f32, bf16 or f16.
    #[arg(long, default_value_t = WeightDtype::F32)]
    dtype: WeightDtype,
}

/// Imports the file and says what came of it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let shown = std::io::stderr().is_terminal();
    let mut show = |progress| {
        if shown {
            eprint!("\r{}", line(progress));
        }
    };
    let outcome = import(&arguments.file, &arguments.out, arguments.dtype, &mut show);
    if shown {
        eprintln!();
    }
    let imported = outcome?;
    println!(
        "imported {} ({}, {} tensors, {} in {})",
        imported.directory.display(),
        imported.model_type,
        imported.tensors,
        megabytes(imported.weight_bytes),
        imported.dtype,
    );
    Ok(())
}

fn line(progress: ImportProgress) -> String {
    match progress {
        ImportProgress::Reading => "reading the header".to_owned(),
        ImportProgress::Weights { done_bytes, total_bytes } => {
            format!("writing weights: {} of {}", megabytes(done_bytes), megabytes(total_bytes))
        }
        ImportProgress::Flushing => "flushing to disk           ".to_owned(),
    }
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}
