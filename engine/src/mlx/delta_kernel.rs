//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024) as one kernel for GPUs, where a prompt would
//! otherwise be thousands of small operations that wait for each other.
//!
//! 32 threads hold one row of a head's memory, a value's, in their registers from the first token to the
//! last. Sums over a row are those of each thread's neighbouring keys, then of the threads, in f32.

use mlx_rs::{Array, Dtype};

use super::device::BackEnd;
use super::kernel::{Constant, Grid, Kernel, KernelSource, LANES, Output};
use crate::error::{Code, Error, Result};

/// Rows of a memory that are started together.
const ROWS_TOGETHER: i32 = 4;
/// The widest key, so that a row's part fits a thread's registers.
const KEY_WIDTH_MAX: i32 = 512;

const SOURCE: KernelSource = KernelSource {
    name: c"slipstream_gated_delta",
    inputs: &[c"queries", c"keys", c"values", c"decays", c"strengths", c"before"],
    outputs: &[c"read", c"after"],
    body: "
if (row >= VALUE_WIDTH) return;
constexpr int PART = KEY_WIDTH / 32;
constexpr int SHARING = VALUE_HEADS / KEY_HEADS;
const int tokens = keys_shape[1];
const int head = slab % VALUE_HEADS;
const long first = long(slab / VALUE_HEADS) * tokens;
const long place = (long(slab) * VALUE_WIDTH + row) * KEY_WIDTH + lane * PART;

float memory[PART];
for (int i = 0; i < PART; ++i) memory[i] = before[place + i];

// A token is fetched while the one before it is summed. The first sums are of none, and change nothing.
float key[PART] = {}, query[PART] = {};
float value = 0.0f, decay = 1.0f, strength = 0.0f;
long key_at = (first * KEY_HEADS + head / SHARING) * KEY_WIDTH + lane * PART;
long head_at = first * VALUE_HEADS + head;
for (int token = -1; token < tokens; ++token) {
  float next_key[PART] = {}, next_query[PART] = {};
  float next_value = 0.0f, next_decay = 1.0f, next_strength = 0.0f;
  if (token + 1 < tokens) {
    for (int i = 0; i < PART; ++i) {
      next_key[i] = float(keys[key_at + i]);
      next_query[i] = float(queries[key_at + i]);
    }
    next_value = float(values[head_at * VALUE_WIDTH + row]);
    next_decay = decays[head_at];
    next_strength = float(strengths[head_at]);
  }
  float held = 0.0f;
  for (int i = 0; i < PART; ++i) {
    memory[i] *= decay;
    held += memory[i] * key[i];
  }
  const float written = (value - sum_of_lanes(held)) * strength;
  float seen = 0.0f;
  for (int i = 0; i < PART; ++i) {
    memory[i] += key[i] * written;
    seen += memory[i] * query[i];
  }
  seen = sum_of_lanes(seen);
  if (lane == 0 && token >= 0) read[(head_at - VALUE_HEADS) * VALUE_WIDTH + row] = NUMBER(seen);
  for (int i = 0; i < PART; ++i) {
    key[i] = next_key[i];
    query[i] = next_query[i];
  }
  value = next_value;
  decay = next_decay;
  strength = next_strength;
  key_at += KEY_HEADS * KEY_WIDTH;
  head_at += VALUE_HEADS;
}

for (int i = 0; i < PART; ++i) after[place + i] = memory[i];
",
};

/// Heads and their widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: i32,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: i32,
    /// Width of one query or key.
    pub key_width: i32,
    /// Width of one value.
    pub value_width: i32,
}

/// What tokens bring, B rows of L tokens.
#[derive(Debug)]
pub struct DeltaInputs<'arrays> {
    /// `[B, L, Hk, Dk]`.
    pub queries: &'arrays Array,
    /// `[B, L, Hk, Dk]`.
    pub keys: &'arrays Array,
    /// `[B, L, Hv, Dv]`.
    pub values: &'arrays Array,
    /// `[B, L, Hv]` in f32.
    pub decays: &'arrays Array,
    /// `[B, L, Hv]`.
    pub strengths: &'arrays Array,
    /// The memories before the first token, `[B, Hv, Dv, Dk]` in f32.
    pub memory: &'arrays Array,
}

/// The kernel for memories of one shape.
#[derive(Debug)]
pub struct DeltaKernel {
    kernel: Kernel,
    shape: DeltaShape,
}

impl DeltaKernel {
    /// The kernel for this thread's device; `None` where that is no GPU, and for keys that 32 threads
    /// cannot share evenly.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn new(shape: DeltaShape) -> Result<Option<Self>> {
        let width = shape.key_width;
        let fits = (LANES..=KEY_WIDTH_MAX).contains(&width) && width % LANES == 0;
        if !fits || shape.value_heads % shape.key_heads != 0 {
            return Ok(None);
        }
        let kernel = Kernel::new(BackEnd::of_this_thread()?, SOURCE)?;
        Ok(kernel.map(|kernel| Self { kernel, shape }))
    }

    /// What the tokens read, `[B, L, Hv, Dv]` in the queries' type, and the memories after the last of
    /// them.
    ///
    /// # Errors
    /// `Internal` when an input has another shape or type; `EngineFailed` with MLX's text.
    pub fn run(&self, inputs: &DeltaInputs<'_>) -> Result<(Array, Array)> {
        self.check(inputs)?;
        let DeltaInputs { queries, keys, values, decays, strengths, memory } = *inputs;
        let DeltaShape { key_heads, value_heads, key_width, value_width } = self.shape;
        let outputs = [
            Output { shape: values.shape().to_vec(), dtype: queries.dtype() },
            Output { shape: memory.shape().to_vec(), dtype: Dtype::Float32 },
        ];
        let grid = Grid {
            rows: value_width,
            slabs: keys.dim(0) * value_heads,
            rows_together: ROWS_TOGETHER,
        };
        let constants = [
            (c"NUMBER", Constant::Type(queries.dtype())),
            (c"KEY_HEADS", Constant::Number(key_heads)),
            (c"VALUE_HEADS", Constant::Number(value_heads)),
            (c"KEY_WIDTH", Constant::Number(key_width)),
            (c"VALUE_WIDTH", Constant::Number(value_width)),
        ];
        let arrays = [queries, keys, values, decays, strengths, memory];
        // SAFETY: `check` holds the shapes that the kernel's places are computed from: a slab is a head
        // of a row of the batch, and a thread past the last row of its memory returns at once. Each
        // group of lanes writes its own row of `after` and its own column of `read`, all of them.
        let results = unsafe { self.kernel.apply(&arrays, &outputs, grid, &constants)? };
        <[Array; 2]>::try_from(results)
            .map(|[read, after]| (read, after))
            .map_err(|_| Error::new(Code::Internal, "a kernel has lost an output"))
    }

    fn check(&self, inputs: &DeltaInputs<'_>) -> Result<()> {
        let DeltaShape { key_heads, value_heads, key_width, value_width } = self.shape;
        let (rows, tokens) = (inputs.keys.dim(0), inputs.keys.dim(1));
        let key = [rows, tokens, key_heads, key_width];
        let head = [rows, tokens, value_heads];
        let fits = inputs.keys.ndim() == 4
            && inputs.keys.shape() == key
            && inputs.queries.shape() == key
            && inputs.values.shape() == [rows, tokens, value_heads, value_width]
            && inputs.decays.shape() == head
            && inputs.strengths.shape() == head
            && inputs.memory.shape() == [rows, value_heads, value_width, key_width]
            && inputs.memory.dtype() == Dtype::Float32
            && inputs.decays.dtype() == Dtype::Float32;
        match fits {
            true => Ok(()),
            false => {
                Err(Error::new(Code::Internal, format!("{inputs:?} do not fit {:?}", self.shape)))
            }
        }
    }
}
