//! Loading a model on the engine thread, and what is known of it afterwards.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{ModelCapabilities, ModelCard, RowThread};
use slipstream_engine::mlx::thread::RebuildPause;
use slipstream_engine::mlx::{BackEnd, Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Loaded};
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::scheduler::MlxExecutor;

/// What to load, and how.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelArguments {
    /// The model directory: config.json, tokenizer.json, safetensors.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// The type to compute in; auto is the fastest one of the back end.
    #[arg(long, value_enum, default_value_t = DtypeChoice::Auto)]
    pub(crate) dtype: DtypeChoice,
}

/// The computing types that `--dtype` offers.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum DtypeChoice {
    Auto,
    F32,
    Bf16,
    F16,
}

impl DtypeChoice {
    pub(crate) fn dtype(self) -> Option<Dtype> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(Dtype::Float32),
            Self::Bf16 => Some(Dtype::Bfloat16),
            Self::F16 => Some(Dtype::Float16),
        }
    }
}

impl ModelArguments {
    /// The name that clients call the model by: its directory's.
    pub(crate) fn id(&self) -> String {
        let path = self.model.canonicalize().unwrap_or_else(|_| self.model.clone());
        path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into())
    }

    /// Loads the model on an engine thread of its own.
    pub(crate) fn start(
        &self,
        config: SchedulerConfig,
        clock: Clock,
    ) -> Result<(RowThread<MlxExecutor>, ModelCard)> {
        check_directory(&self.model)?;
        let card = Arc::new(OnceLock::new());
        let (directory, dtype, id) = (self.model.clone(), self.dtype.dtype(), self.id());
        let known = Arc::clone(&card);
        let build = move || {
            let device = Device::select()?;
            let loaded = load(&directory, dtype, device.back_end())?;
            // A rebuild after a failure loads the same files: the first card stays true.
            let _ = known.set(describe(&id, &loaded, device.back_end()));
            Ok(MlxExecutor::new(loaded.model, loaded.weights_bytes))
        };
        let rows = RowThread::start(config, clock, RebuildPause::default(), build)?;
        let card = card.get().cloned();
        let card = card.ok_or_else(|| Error::new(Code::Internal, "a model loaded without a card"));
        Ok((rows, card?))
    }
}

/// The name of a type as people write it.
fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float32 => "float32",
        Dtype::Bfloat16 => "bfloat16",
        Dtype::Float16 => "float16",
        _ => "other",
    }
}

fn check_directory(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let message = format!("no model directory at `{}`", directory.display());
    Err(Error::new(Code::BadModel, message).with_hint("`slipstream import` makes one from a GGUF"))
}

fn load(directory: &Path, dtype: Option<Dtype>, back_end: BackEnd) -> Result<Loaded> {
    model::load(directory, LoadOptions { dtype, back_end })
}

fn describe(id: &str, loaded: &Loaded, back_end: BackEnd) -> ModelCard {
    ModelCard {
        id: id.to_owned(),
        context_tokens: loaded.context_tokens,
        vocab_size: loaded.vocabulary,
        dtype: dtype_name(loaded.dtype).to_owned(),
        back_end: back_end.to_string(),
        capabilities: ModelCapabilities { serial_because: loaded.serial_because.clone() },
        sampling_defaults: SamplingParams::default(),
    }
}
