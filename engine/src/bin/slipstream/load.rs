//! Loading a model on the engine thread, and what is known of it afterwards.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use slipstream_engine::cache::{KvProfile, LayerBytes};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{KvBudget, Room, SchedulerConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{ModelCapabilities, ModelCard, RowThread};
use slipstream_engine::mlx::thread::RebuildPause;
use slipstream_engine::mlx::{BackEnd, Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Loaded, ModelConfig};
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

/// How to serve what is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Serving {
    /// The settings, but for the budget.
    pub(crate) scheduler: SchedulerConfig,
    pub(crate) kv_budget: KvBudget,
    pub(crate) max_tokens_default: usize,
}

/// A model that runs rows.
pub(crate) struct Served {
    pub(crate) rows: RowThread<MlxExecutor>,
    pub(crate) card: ModelCard,
    /// The settings, with the budget that the model leaves room for.
    pub(crate) scheduler: SchedulerConfig,
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
    pub(crate) fn start(&self, serving: Serving, clock: Clock) -> Result<Served> {
        check_directory(&self.model)?;
        let learned = Arc::new(OnceLock::new());
        let (arguments, known) = (self.clone(), Arc::clone(&learned));
        let build = move || {
            let device = Device::select()?;
            let loaded = load(&arguments.model, arguments.dtype.dtype(), device.back_end())?;
            let card =
                arguments.describe(&loaded, device.back_end(), serving.max_tokens_default)?;
            let config = serving.on(device, &loaded, &card)?;
            let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
            // A rebuild after a failure loads the same files: what was learned first stays true.
            let _ = known.set((card, config.clone()));
            Ok((executor.with_levers(config.levers), config))
        };
        let rows = RowThread::start(clock, RebuildPause::default(), build)?;
        let (card, scheduler) = learned.get().cloned().ok_or_else(|| {
            Error::new(Code::Internal, "a model loaded without telling what it is")
        })?;
        Ok(Served { rows, card, scheduler })
    }

    fn describe(
        &self,
        loaded: &Loaded,
        back_end: BackEnd,
        max_tokens_default: usize,
    ) -> Result<ModelCard> {
        Ok(ModelCard {
            id: self.id(),
            context_tokens: loaded.context_tokens,
            vocab_size: loaded.vocabulary,
            dtype: dtype_name(loaded.dtype).to_owned(),
            back_end: back_end.to_string(),
            capabilities: ModelCapabilities {
                serial_because: loaded.family.serial_reason.map(str::to_owned),
            },
            sampling_defaults: SamplingParams::default(),
            max_tokens_default,
            kv: kv_profile(&self.model, loaded.dtype)?,
        })
    }
}

impl Serving {
    /// The settings on `device` beside the weights of `loaded`.
    fn on(&self, device: Device, loaded: &Loaded, card: &ModelCard) -> Result<SchedulerConfig> {
        let room = Room {
            total_bytes: device.memory_bytes()?,
            weights_bytes: loaded.weights_bytes,
            prompt_cache_bytes: 0,
        };
        let kv_budget_bytes = self.kv_budget.resolve(&room, card.smallest_row_bytes())?;
        Ok(SchedulerConfig { kv_budget_bytes, ..self.scheduler.clone() })
    }
}

/// What a row's caches cost: keys and values of each KV head in every layer, for every token, in the
/// type that is computed in.
fn kv_profile(directory: &Path, dtype: Dtype) -> Result<KvProfile> {
    let config = ModelConfig::read(directory)?;
    let count = |name: &str| Ok::<_, Error>(u64::from(config.count(name)?.unsigned_abs()));
    let optional = |name: &str| -> Result<Option<u64>> {
        Ok(config.optional_count(name)?.map(|count| u64::from(count.unsigned_abs())))
    };
    let heads = count("num_attention_heads")?;
    let kv_heads = optional("num_key_value_heads")?.unwrap_or(heads);
    let head_dim = match optional("head_dim")? {
        Some(head_dim) => head_dim,
        None => count("hidden_size")? / heads,
    };
    let dtype_bytes = if dtype == Dtype::Float32 { 4 } else { 2 };
    let token_bytes = 2 * kv_heads * head_dim * dtype_bytes;
    let layers = config.count("num_hidden_layers")?.unsigned_abs() as usize;
    Ok(KvProfile { layers: vec![LayerBytes::Full { token_bytes }; layers] })
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
