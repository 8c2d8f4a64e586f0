//! From a directory to a model in memory.

use std::path::Path;

use super::{Decoding, Family, Model, ModelConfig, reach};
use crate::cache::{KvProfile, KvScheme};
use crate::error::{Code, Error, Result};
use crate::mlx::{BackEnd, Dtype, ReadProgress, Weights, WeightsReading, estimate_bytes};

/// How to load.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// The floating-point type to compute in; `None` picks the fastest one of the back end.
    pub dtype: Option<Dtype>,
    /// What will execute it.
    pub back_end: BackEnd,
}

/// A model in memory and what was learned while loading it.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// Its family.
    pub family: Family,
    /// The type it computes in.
    pub dtype: Dtype,
    /// Bytes of one number of that type.
    pub value_bytes: u64,
    /// Bytes of its weights.
    pub weights_bytes: u64,
    /// Tokens that it was trained to see at once.
    pub context_tokens: usize,
    /// Size of its logits.
    pub vocabulary: usize,
    /// Numbers of a hidden state.
    pub hidden_size: usize,
    /// Why its rows cannot share a batch; `None` when they can. The family's word comes first, then
    /// that of its caches.
    pub serial_because: Option<String>,
}

impl Loaded {
    /// What a row's caches cost under `scheme`, before it runs.
    pub fn kv_profile(&self, scheme: &KvScheme) -> KvProfile {
        let tokens = self.model.token_shapes();
        let token_bytes = |layer: usize| match &tokens[layer] {
            Some(token) => scheme.token_bytes(layer, token, self.value_bytes),
            None => 0,
        };
        let profile = self.model.new_caches().profile(token_bytes);
        match self.model.decoding() {
            Decoding::NextToken => profile,
            // It lies beside what was written while it is denoised, and windows keep it whole after.
            Decoding::BlockDiffusion(blocks) => {
                profile.with_spare_tokens(blocks.denoising().canvas.most_tokens)
            }
        }
    }
}

/// Loads the checkpoint in `directory`: an HF or mlx-community layout.
///
/// # Errors
/// `BadModel` naming the file, field or tensor that is missing, truncated, left over or does not fit.
pub fn load(directory: &Path, options: LoadOptions) -> Result<Loaded> {
    load_with_progress(directory, options, &mut |_| ())
}

/// The same, telling how far the weights are read.
///
/// # Errors
/// As [`load`].
pub fn load_with_progress(
    directory: &Path,
    options: LoadOptions,
    on_progress: &mut dyn FnMut(ReadProgress),
) -> Result<Loaded> {
    let mut loading = Loading::begin(directory, options)?;
    while let Some(progress) = loading.read_part()? {
        on_progress(progress);
    }
    Ok(loading.finish())
}

/// A model whose layers are made and whose weights are read part by part, so that others can run in between.
#[derive(Debug)]
pub struct Loading {
    loaded: Loaded,
    reading: WeightsReading,
}

impl Loading {
    /// Makes the layers of the checkpoint in `directory`; no weights are read yet.
    ///
    /// # Errors
    /// As [`load`].
    pub fn begin(directory: &Path, options: LoadOptions) -> Result<Self> {
        if !directory.is_dir() {
            let message = format!("no model directory at `{}`", directory.display());
            return Err(Error::new(Code::BadModel, message));
        }
        let config = ModelConfig::read(directory)?;
        let family = Family::of_config(&config)?;
        let config = match family.reads_generation {
            true => config.with_generation(directory)?,
            false => config,
        };
        let config = config.text_part()?;
        config.check_bounds()?;
        let mut weights = Weights::load(directory)?;
        family.arrange(&config, &mut weights)?;
        let dtype = options.dtype.unwrap_or_else(|| fastest_dtype(options.back_end, &weights));
        weights.cast(dtype)?;
        let value_bytes = weights.float_bytes();
        let model = family.build(&config, &mut weights)?;
        let reading = weights.begin_reading()?;
        let family_reason = family.serial_reason.map(str::to_owned);
        let loaded = Loaded {
            weights_bytes: reading.total_bytes(),
            context_tokens: reach::context_tokens(&config)?.unsigned_abs() as usize,
            vocabulary: config.count("vocab_size")?.unsigned_abs() as usize,
            hidden_size: config.count("hidden_size")?.unsigned_abs() as usize,
            serial_because: family_reason.or_else(|| model.new_caches().serial_because()),
            value_bytes,
            model,
            family,
            dtype,
        };
        Ok(Self { loaded, reading })
    }

    /// Reads the next weights, some milliseconds' worth; `None` when all are in memory.
    ///
    /// # Errors
    /// `BadModel` naming a tensor that holds NaN.
    pub fn read_part(&mut self) -> Result<Option<ReadProgress>> {
        self.reading.read_part()
    }

    /// Bytes of all its weights.
    pub fn weights_bytes(&self) -> u64 {
        self.loaded.weights_bytes
    }

    /// The model. What was not read is read by the first request.
    pub fn finish(self) -> Loaded {
        self.loaded
    }
}

/// Bytes that the weights of the checkpoint in `directory` will take, from the headers of its files. Tensors that the
/// model has no use for count too, so it may be less.
///
/// # Errors
/// `BadModel` naming the file that is missing, truncated or not safetensors.
pub fn estimate_weights_bytes(directory: &Path, options: LoadOptions) -> Result<u64> {
    let dtype = match (options.dtype, options.back_end) {
        (None, BackEnd::Cpu) => Some(Dtype::Float32),
        (dtype, _) => dtype,
    };
    estimate_bytes(directory, dtype)
}

/// Holds that `weights`, which nothing has read yet, are those of a model with the config `config`; nothing is
/// read.
///
/// # Errors
/// As [`load`].
pub fn check(config: ModelConfig, mut weights: Weights) -> Result<()> {
    let family = Family::of_config(&config)?;
    let config = config.text_part()?;
    config.check_bounds()?;
    family.arrange(&config, &mut weights)?;
    // Dense experts run on processors in this type only, and whoever checks may load elsewhere.
    weights.cast(Dtype::Float32)?;
    family.build(&config, &mut weights)?;
    weights.check_nothing_is_left()
}

/// On processors MLX multiplies f32 through BLAS and half types through plain loops; on GPUs half
/// types are faster, and the checkpoint's own one is kept.
fn fastest_dtype(back_end: BackEnd, weights: &Weights) -> Dtype {
    match (back_end, weights.dtype()) {
        (BackEnd::Cpu, _) => Dtype::Float32,
        (_, Some(half @ (Dtype::Float16 | Dtype::Bfloat16))) => half,
        _ => Dtype::Bfloat16,
    }
}
