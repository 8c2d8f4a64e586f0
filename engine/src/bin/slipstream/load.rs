//! Loading a model on the engine thread, and what is known of it afterwards.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use slipstream_engine::cache::{GROUP_SIZE_DEFAULT, KvQuant, KvScheme, Packing, read_kv_config};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{ByteCount, Levers, SchedulerConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{
    Cuts, Embeddings, Landed, LoadStep, Loading, ModelCapabilities, ModelCard, ModelLoader,
    RequestDefaults, Source, TextVectors,
};
use slipstream_engine::hub::fit::Wish;
use slipstream_engine::mlx::{BackEnd, Device, Dtype, ReadProgress, fused, memory};
use slipstream_engine::model::{self, Decoding, Family, LoadOptions, Loaded, Loading as Reading};
use slipstream_engine::prompt_cache::disk::{DiskConfig, DiskTier};
use slipstream_engine::sampling::{SamplingOverrides, SamplingParams};
use slipstream_engine::scheduler::MlxExecutor;
use slipstream_engine::telemetry::MemorySnapshot;
use tracing::{info, warn};

use crate::fit::float_type;
use crate::library::PlacesArguments;

/// Weights that take some seconds to read.
const LARGE_MODEL_BYTES: u64 = 1 << 30;

/// What makes the bits of a cache beside the checkpoint: this program and the MLX that it is built on.
const BUILD: &str = concat!("slipstream ", env!("CARGO_PKG_VERSION"), ", mlx 0.32.2, caches 1");

/// What to load, and how.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelArguments {
    /// The model: a directory with config.json, tokenizer.json and safetensors, or a name of `slipstream ls`.
    #[arg(long, value_name = "NAME|DIR")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) places: PlacesArguments,
    /// What the library calls it, where it was named so.
    #[arg(skip)]
    called: Option<String>,
    #[command(flatten)]
    pub(crate) loading: LoadArguments,
}

/// How to load a model.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArguments {
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

/// Loads models on the engine thread, all in the same way.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) arguments: LoadArguments,
    pub(crate) serving: Serving,
    pub(crate) clock: Clock,
    /// The directory of the only model that was named: every flag is about this one.
    pub(crate) single: Option<PathBuf>,
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
    /// Where prompts are kept on disk, if they are.
    pub(crate) disk: Option<DiskConfig>,
    pub(crate) max_tokens_default: usize,
    pub(crate) keeps_billing_line: bool,
    /// What the flags say of sampling.
    pub(crate) sampling: SamplingOverrides,
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
    /// Puts the directory of the model that `--model` names in its place.
    pub(crate) fn resolve(&mut self) -> Result<()> {
        let found = self.places.find(&self.model)?;
        (self.model, self.called) = (found.directory, found.id);
        Ok(())
    }

    /// The model, loaded for `back_end` on this thread, and the scheme of its KV caches.
    pub(crate) fn load(&self, back_end: BackEnd, levers: Levers) -> Result<(Loaded, KvScheme)> {
        let mut reading = self.loading.begin(&self.model, back_end)?;
        while reading.read_part()?.is_some() {}
        self.loading.finish(reading, &self.model, back_end, levers)
    }
}

impl LoadArguments {
    fn options(&self, back_end: BackEnd) -> LoadOptions {
        LoadOptions { dtype: self.dtype.dtype(), back_end }
    }

    /// What the weights of the model in `directory` will take; 0 when its files do not tell.
    pub(crate) fn estimate(&self, directory: &Path, back_end: BackEnd) -> u64 {
        model::estimate_weights_bytes(directory, self.options(back_end)).unwrap_or_default()
    }

    /// How models would be served, as far as that holds for all of them.
    pub(crate) fn wish(&self) -> Result<Wish> {
        let scheme = match self.kv.kv_quant {
            KvQuant::Off | KvQuant::Config => KvScheme::Plain,
            KvQuant::Bits(bits) => KvScheme::Uniform {
                packing: self.kv.packing(bits)?,
                start_tokens: self.kv.quantized_kv_start.unwrap_or(0),
            },
        };
        Ok(Wish { scheme, float_type: float_type(self.dtype), ..Wish::default() })
    }

    fn begin(&self, directory: &Path, back_end: BackEnd) -> Result<Reading> {
        check_directory(directory)?;
        self.kv.check()?;
        Reading::begin(directory, self.options(back_end))
    }

    /// The model whose weights are in memory.
    fn finish(
        &self,
        reading: Reading,
        directory: &Path,
        back_end: BackEnd,
        levers: Levers,
    ) -> Result<(Loaded, KvScheme)> {
        let loaded = reading.finish();
        let scheme = self.kv.scheme(directory, &loaded)?;
        check_blocks(&loaded, &scheme)?;
        if back_end != BackEnd::Cpu && !levers.no_compile {
            fuse_gates(loaded.dtype);
        }
        Ok((loaded, scheme))
    }
}

impl ModelLoader<MlxExecutor> for Loader {
    fn begin(&self, source: &Source) -> Result<Box<dyn Loading<MlxExecutor>>> {
        let device = Device::select()?;
        let reading = self.arguments.begin(&source.directory, device.back_end())?;
        let weights_bytes = reading.weights_bytes();
        let (loader, source) = (self.clone(), source.clone());
        let (told, back_end) = (quarters(), device.back_end());
        let reading = Some(reading);
        Ok(Box::new(Checkpoint { loader, source, back_end, reading, weights_bytes, told }))
    }

    fn dropped(&self) {
        if let Err(error) = memory::clear_cache() {
            warn!("the memory of a model that is gone was not given back: {error}");
        }
    }

    fn memory(&self) -> MemorySnapshot {
        memory::snapshot()
    }
}

/// A checkpoint whose weights are being read.
struct Checkpoint<F> {
    loader: Loader,
    source: Source,
    back_end: BackEnd,
    /// None once it is done.
    reading: Option<Reading>,
    weights_bytes: u64,
    /// Told how far it is.
    told: F,
}

impl<F: FnMut(ReadProgress)> Loading<MlxExecutor> for Checkpoint<F> {
    fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    fn advance(&mut self) -> Result<LoadStep<MlxExecutor>> {
        let ended = || Error::new(Code::Internal, "a model was loaded already");
        let reading = self.reading.as_mut().ok_or_else(ended)?;
        if let Some(progress) = reading.read_part()? {
            (self.told)(progress);
            return Ok(LoadStep::More { done_bytes: progress.done_bytes });
        }
        let reading = self.reading.take().ok_or_else(ended)?;
        let landed = self.loader.land(reading, &self.source, self.back_end)?;
        Ok(LoadStep::Done(Box::new(landed)))
    }
}

impl Loader {
    fn land(
        &self,
        reading: Reading,
        source: &Source,
        back_end: BackEnd,
    ) -> Result<Landed<MlxExecutor>> {
        let (directory, levers) = (&source.directory, self.serving.scheduler.levers);
        let (loaded, scheme) = self.arguments.finish(reading, directory, back_end, levers)?;
        let card = self.describe(&loaded, &scheme, back_end, source)?;
        let disk = self.open_disk(&card, &scheme, directory)?;
        let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
        let executor = executor.with_kv_scheme(scheme).with_levers(levers);
        Ok(Landed { executor, card, config: self.serving.scheduler.clone(), disk })
    }

    /// The disk tier for what this model makes under `scheme`, if there is to be one. Anything that shows in the
    /// bits of a cache is part of its identity.
    fn open_disk(
        &self,
        card: &ModelCard,
        scheme: &KvScheme,
        directory: &Path,
    ) -> Result<Option<DiskTier>> {
        let Some(config) = self.serving.disk.clone() else { return Ok(None) };
        let settings = [
            &card.dtype,
            &card.back_end,
            &format!("{scheme:?}"),
            &format!("{:?}", self.serving.scheduler.levers),
            BUILD,
        ];
        let identity = model::fingerprint(directory, &settings)?;
        DiskTier::open(config, &identity, self.clock.clone()).map(Some)
    }

    fn describe(
        &self,
        loaded: &Loaded,
        scheme: &KvScheme,
        back_end: BackEnd,
        source: &Source,
    ) -> Result<ModelCard> {
        let (serving, directory) = (&self.serving, &source.directory);
        let model_reason = loaded.serial_because.clone();
        let (embeddings, mute_because) = self.embeddings(loaded, directory)?;
        let of_model = SamplingOverrides::of_model(directory)?;
        Ok(ModelCard {
            id: source.id.to_string(),
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
            request_defaults: RequestDefaults::default(),
            kv: loaded.kv_profile(scheme),
        })
    }
}

impl Loader {
    /// Whether the model makes vectors of texts, and why it then answers nothing.
    fn embeddings(
        &self,
        loaded: &Loaded,
        directory: &Path,
    ) -> Result<(Embeddings, Option<String>)> {
        let vectors = TextVectors::of_model(directory, loaded.hidden_size)?;
        match vectors {
            None if self.arguments.matryoshka && self.single.as_deref() == Some(directory) => {
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
                let cuts = if self.arguments.matryoshka { Cuts::Any } else { vectors.cuts };
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

    fn packing(&self, bits: i32) -> Result<Packing> {
        let group_size = self.kv_group_size.unwrap_or(i64::from(GROUP_SIZE_DEFAULT));
        Packing::new(i64::from(bits), group_size)
            .map_err(|error| error.while_doing("`--kv-group-size`"))
    }

    /// The scheme for the model `loaded` from `directory`.
    fn scheme(&self, directory: &Path, loaded: &Loaded) -> Result<KvScheme> {
        let layers = loaded.model.token_shapes();
        match self.kv_quant {
            KvQuant::Off => Ok(KvScheme::Plain),
            KvQuant::Config => read_kv_config(directory, &layers),
            KvQuant::Bits(bits) => {
                let packing = self.packing(bits)?;
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

pub(crate) fn check_directory(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let message = format!("no model directory at `{}`", directory.display());
    Err(Error::new(Code::BadModel, message).with_hint("`slipstream import` makes one from a GGUF"))
}
