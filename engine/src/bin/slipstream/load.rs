//! Loading a model on the engine thread, and what is known of it afterwards.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use slipstream_engine::cache::{GROUP_SIZE_DEFAULT, KvQuant, KvScheme, Packing, read_kv_config};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{ByteBudget, ByteCount, Levers, Room, SchedulerConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{
    Cuts, Embeddings, ModelCapabilities, ModelCard, Resources, RowThread, TextVectors,
};
use slipstream_engine::mlx::thread::RebuildPause;
use slipstream_engine::mlx::{BackEnd, Device, Dtype, ReadProgress, fused};
use slipstream_engine::model::{self, Decoding, Family, LoadOptions, Loaded};
use slipstream_engine::prompt_cache::disk::{DiskConfig, DiskTier};
use slipstream_engine::sampling::{SamplingOverrides, SamplingParams};
use slipstream_engine::scheduler::MlxExecutor;
use tracing::{info, warn};

/// Weights that take some seconds to read.
const LARGE_MODEL_BYTES: u64 = 1 << 30;

/// What makes the bits of a cache beside the checkpoint: this program and the MLX that it is built on.
const BUILD: &str = concat!("slipstream ", env!("CARGO_PKG_VERSION"), ", mlx 0.32.2, caches 1");

/// What to load, and how.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelArguments {
    /// The model directory: config.json, tokenizer.json, safetensors.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// The type to compute in; auto is the fastest one of the back end.
    #[arg(long, value_enum, default_value_t = DtypeChoice::Auto)]
    pub(crate) dtype: DtypeChoice,
    /// Let requests cut the vectors of an embedding model to any length (`dimensions`), though its files do
    /// not say that it was trained for that. Qwen3-Embedding was.
    #[arg(long)]
    matryoshka: bool,
    #[command(flatten)]
    kv: KvArguments,
}

/// In which form KV caches are stored.
#[derive(Debug, Clone, Copy, clap::Args)]
struct KvArguments {
    /// Bits that KV caches are quantized to: off, 4, 8, or per layer as the model directory's
    /// kv_config.json says (config).
    #[arg(long, value_name = "off|4|8|config", default_value = "off")]
    kv_quant: KvQuant,
    /// Values that share a scale, 32, 64 or 128, with --kv-quant 4 or 8 [default: 64].
    #[arg(long, value_name = "VALUES")]
    kv_group_size: Option<i64>,
    /// Tokens from which on a row's KV caches are quantized, with --kv-quant 4 or 8; more than 0 runs
    /// every request alone [default: 0].
    #[arg(long, value_name = "TOKENS")]
    quantized_kv_start: Option<usize>,
}

/// How to serve what is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Serving {
    /// The settings, but for the budgets.
    pub(crate) scheduler: SchedulerConfig,
    pub(crate) kv_budget: ByteBudget,
    pub(crate) prompt_cache: ByteBudget,
    /// Where prompts are kept on disk, if they are.
    pub(crate) disk: Option<DiskConfig>,
    pub(crate) max_tokens_default: usize,
    pub(crate) keeps_billing_line: bool,
    /// What the flags say of sampling.
    pub(crate) sampling: SamplingOverrides,
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

    /// The model, loaded for `back_end` on this thread, and the scheme of its KV caches.
    pub(crate) fn load(&self, back_end: BackEnd, levers: Levers) -> Result<(Loaded, KvScheme)> {
        check_directory(&self.model)?;
        self.kv.check()?;
        let options = LoadOptions { dtype: self.dtype.dtype(), back_end };
        let loaded = model::load_with_progress(&self.model, options, &mut quarters())?;
        let scheme = self.kv.scheme(&self.model, &loaded)?;
        check_blocks(&loaded, &scheme)?;
        if back_end != BackEnd::Cpu && !levers.no_compile {
            fuse_gates(loaded.dtype);
        }
        Ok((loaded, scheme))
    }

    /// Loads the model on an engine thread of its own.
    pub(crate) fn start(&self, serving: Serving, clock: Clock) -> Result<Served> {
        let learned = Arc::new(OnceLock::new());
        let (arguments, known, time) = (self.clone(), Arc::clone(&learned), clock.clone());
        let build = move || {
            let device = Device::select()?;
            let (loaded, scheme) = arguments.load(device.back_end(), serving.scheduler.levers)?;
            let card = arguments.describe(&loaded, &scheme, device.back_end(), &serving)?;
            let config = serving.on(device, &loaded, &card)?;
            let disk = arguments.open_disk(&serving, &card, &scheme, time.clone())?;
            let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
            let executor = executor.with_kv_scheme(scheme).with_levers(config.levers);
            // A rebuild after a failure loads the same files: what was learned first stays true.
            let _ = known.set((card, config.clone()));
            Ok(Resources { executor, config, disk })
        };
        let rows = RowThread::start(clock, RebuildPause::default(), build)?;
        let (card, scheduler) = learned.get().cloned().ok_or_else(|| {
            Error::new(Code::Internal, "a model loaded without telling what it is")
        })?;
        Ok(Served { rows, card, scheduler })
    }

    /// The disk tier for what this model makes under `scheme`, if there is to be one. Anything that shows in the
    /// bits of a cache is part of its identity.
    fn open_disk(
        &self,
        serving: &Serving,
        card: &ModelCard,
        scheme: &KvScheme,
        clock: Clock,
    ) -> Result<Option<DiskTier>> {
        let Some(config) = serving.disk.clone() else { return Ok(None) };
        let settings = [
            &card.dtype,
            &card.back_end,
            &format!("{scheme:?}"),
            &format!("{:?}", serving.scheduler.levers),
            BUILD,
        ];
        let identity = model::fingerprint(&self.model, &settings)?;
        DiskTier::open(config, &identity, clock).map(Some)
    }

    fn describe(
        &self,
        loaded: &Loaded,
        scheme: &KvScheme,
        back_end: BackEnd,
        serving: &Serving,
    ) -> Result<ModelCard> {
        let model_reason = loaded.serial_because.clone();
        let (embeddings, mute_because) = self.embeddings(loaded)?;
        let of_model = SamplingOverrides::of_model(&self.model)?;
        Ok(ModelCard {
            id: self.id(),
            context_tokens: loaded.context_tokens,
            vocab_size: loaded.vocabulary,
            dtype: dtype_name(loaded.dtype).to_owned(),
            back_end: back_end.to_string(),
            kv_scheme: scheme.name(),
            capabilities: ModelCapabilities {
                serial_because: model_reason.into_iter().chain(scheme.serial_reason()).collect(),
                writes_blocks: matches!(loaded.model.decoding(), Decoding::BlockDiffusion(_)),
                embeddings,
                mute_because,
            },
            sampling_defaults: serving.sampling.over(&of_model.over(&SamplingParams::default())),
            max_tokens_default: serving.max_tokens_default,
            keeps_billing_line: serving.keeps_billing_line,
            kv: loaded.kv_profile(scheme),
        })
    }
}

impl ModelArguments {
    /// Whether the model makes vectors of texts, and why it then answers nothing.
    fn embeddings(&self, loaded: &Loaded) -> Result<(Embeddings, Option<String>)> {
        let vectors = TextVectors::of_model(&self.model, loaded.hidden_size)?;
        match vectors {
            None if self.matryoshka => {
                let message = "`--matryoshka` has no effect on a model that makes no embeddings";
                Err(Error::new(Code::InvalidRequest, message))
            }
            None => Ok((Embeddings::default(), None)),
            Some(_) if !loaded.family.embeds => {
                let model_type = loaded.family.model_type;
                let message = format!("embedding models of type `{model_type}` are not supported");
                let embed = Family::all().iter().filter(|family| family.embeds);
                let names: Vec<_> = embed.map(|family| family.model_type).collect();
                let error = Error::new(Code::BadModel, message);
                Err(error.with_hint(format!("supported: {}", names.join(", "))))
            }
            Some(vectors) => {
                let cuts = if self.matryoshka { Cuts::Any } else { vectors.cuts };
                let reason = "it is an embedding model, as its `modules.json` says".to_owned();
                Ok((Embeddings::Vectors(TextVectors { cuts, ..vectors }), Some(reason)))
            }
        }
    }
}

/// Logs each quarter that is read of a model large enough to be waited for.
fn quarters() -> impl FnMut(ReadProgress) {
    let mut told = 0;
    move |ReadProgress { done_bytes, total_bytes }| {
        let quarter = done_bytes * 4 / total_bytes.max(1);
        if total_bytes > LARGE_MODEL_BYTES && quarter > told {
            told = quarter;
            info!("{} % of {} read", quarter * 25, ByteCount(total_bytes));
        }
    }
}

/// Steps are as right without fused gates, only slower: a machine that cannot compile them serves.
fn fuse_gates(dtype: Dtype) {
    if let Err(error) = fused::engage(dtype) {
        warn!("the feed-forward gates run operation by operation: {error}");
    }
}

impl Serving {
    /// The settings on `device` beside the weights of `loaded`.
    fn on(&self, device: Device, loaded: &Loaded, card: &ModelCard) -> Result<SchedulerConfig> {
        let room =
            Room { total_bytes: device.memory_bytes()?, weights_bytes: loaded.weights_bytes };
        let kv_budget_bytes = self.kv_budget.kv_bytes(&room, card.smallest_row_bytes())?;
        // What is read for a vector, or written in blocks, is always read anew.
        let keeps_prompts = card.text_vectors().is_err() && !card.capabilities.writes_blocks;
        let prompt_cache_bytes = match keeps_prompts {
            true => self.prompt_cache.prompt_cache_bytes(&room, kv_budget_bytes),
            false => 0,
        };
        Ok(SchedulerConfig { kv_budget_bytes, prompt_cache_bytes, ..self.scheduler.clone() })
    }
}

impl KvArguments {
    /// # Errors
    /// `InvalidRequest` when a flag has nothing to act on: it would be ignored without a word.
    fn check(&self) -> Result<()> {
        let idle = [
            ("--kv-group-size", self.kv_group_size.is_some()),
            ("--quantized-kv-start", self.quantized_kv_start.is_some()),
        ];
        let idle = idle.into_iter().find(|(_, given)| *given);
        match (self.kv_quant, idle) {
            (KvQuant::Off | KvQuant::Config, Some((flag, _))) => {
                let message = format!("`{flag}` has no effect without `--kv-quant` 4 or 8");
                Err(Error::new(Code::InvalidRequest, message))
            }
            (KvQuant::Bits(_), _) | (_, None) => Ok(()),
        }
    }

    /// The scheme for the model `loaded` from `directory`.
    fn scheme(&self, directory: &Path, loaded: &Loaded) -> Result<KvScheme> {
        let layers = loaded.model.token_shapes();
        match self.kv_quant {
            KvQuant::Off => Ok(KvScheme::Plain),
            KvQuant::Config => read_kv_config(directory, &layers),
            KvQuant::Bits(bits) => {
                let group_size = self.kv_group_size.unwrap_or(i64::from(GROUP_SIZE_DEFAULT));
                let packing = Packing::new(i64::from(bits), group_size)
                    .map_err(|error| error.while_doing("`--kv-group-size`"))?;
                let start_tokens = self.quantized_kv_start.unwrap_or(0);
                let scheme = KvScheme::Uniform { packing, start_tokens };
                scheme.check(&layers).map_err(|error| {
                    let name = scheme.name();
                    error.while_doing(format_args!("failed to quantize KV caches as {name}"))
                })?;
                Ok(scheme)
            }
        }
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

/// # Errors
/// `InvalidRequest` for quantized KV caches of a model that writes in blocks: no oracle says what a canvas
/// makes of them.
fn check_blocks(loaded: &Loaded, scheme: &KvScheme) -> Result<()> {
    match (loaded.model.decoding(), scheme) {
        (Decoding::NextToken, _) | (_, KvScheme::Plain) => Ok(()),
        (Decoding::BlockDiffusion(_), scheme) => {
            let (model_type, name) = (loaded.family.model_type, scheme.name());
            let message = format!("KV caches of a `{model_type}` cannot be quantized as {name}");
            Err(Error::new(Code::InvalidRequest, message).with_hint("`--kv-quant off`"))
        }
    }
}

fn check_directory(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let message = format!("no model directory at `{}`", directory.display());
    Err(Error::new(Code::BadModel, message).with_hint("`slipstream import` makes one from a GGUF"))
}
