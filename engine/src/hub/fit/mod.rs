//! Whether a model fits a machine, how long its conversations may get and how fast it may answer: plain arithmetic
//! on what its files and the machine say. `docs/fit.md` has the formulas with their sources; `tests/memory` holds
//! them against what loading and running takes.
//!
//! Words: the **transient** is what a prompt's chunk takes beside weights and caches while it runs; **usable** is
//! what the server lets models have of a memory ([`Room::usable_bytes`]); the **budget** is what that leaves to the
//! caches, as `serve --kv-budget auto` has it, so that what is said here is what the server then does.

mod bandwidth;
mod guess;
mod machine;
#[cfg(test)]
mod tests;

pub use self::bandwidth::{Bandwidth, chip_bandwidth, probe_bandwidth};
pub use self::guess::guess;
#[cfg(feature = "mlx")]
pub use self::machine::of_device;
pub use self::machine::{Machine, Processing};

use crate::cache::{KvProfile, KvScheme};
use crate::config::Room;
use crate::limits::{
    KV_GRANULE_TOKENS, KV_HEADROOM_BYTES, PREFILL_CHUNK_TOKENS_CPU, PREFILL_CHUNK_TOKENS_DEFAULT,
    RECURRENCE_PIECE_TOKENS,
};
use crate::model::outline::{FloatType, InFlight, LayerOutline, Outline, Weighed, WeightTally};

/// Rows for which a fit is told.
pub const ROWS: [usize; 4] = [1, 2, 4, 8];

/// Tokens of a conversation that a model should have room for, if it was trained for as many.
const COMFORTABLE_TOKENS: usize = 8192;

/// Tokens that a row holds in the middle of a usual answer, by which speed is reckoned.
const USUAL_TOKENS: usize = 1024;

/// A model, as far as it takes memory.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// What its config says.
    pub outline: &'a Outline,
    /// What its weights come to.
    pub weights: &'a WeightTally,
}

/// How it is to be served.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The form of its caches.
    pub scheme: KvScheme,
    /// The type to compute in; `None` is what the loader takes for the machine.
    pub float_type: Option<FloatType>,
    /// Prompt tokens that run at once; `None` is the server's default for the machine.
    pub chunk_tokens: Option<usize>,
    /// Bytes that caches may take; `None` is what weights and headroom leave.
    pub kv_budget_bytes: Option<u64>,
}

/// How many arrays of a recurrent layer's channels a prompt's chunk has at once, as measured on a processor.
const CHANNELS_IN_FLIGHT: u64 = 10;

/// Whether a model fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// With room for a conversation of [`COMFORTABLE_TOKENS`], or of all that it was trained for.
    Fits,
    /// It can be served, with less room than that, or only once other programs give memory back.
    Tight,
    /// The server would refuse it.
    No,
}

impl Verdict {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::No => "no",
        }
    }
}

/// What rows together have room for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowsFit {
    /// How many rows.
    pub rows: usize,
    /// Tokens that each may have, prompt and answer; 0 where not even a granule fits.
    pub context_tokens: usize,
    /// Tokens per second that all of them together get at most; `None` where the bandwidth does not tell.
    pub decode_tokens_per_second: Option<f64>,
}

/// How a model fits a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// In short.
    pub verdict: Verdict,
    /// The type that it computes in.
    pub float_type: FloatType,
    /// Bytes of its weights once they are loaded.
    pub weights_bytes: u64,
    /// Bytes that loading takes at most.
    pub load_peak_bytes: u64,
    /// Bytes that one more token of a long row takes.
    pub token_bytes: u64,
    /// Bytes that a prompt's chunk takes at most, beside a row of [`COMFORTABLE_TOKENS`] or less.
    pub transient_bytes: u64,
    /// What the server keeps free of caches.
    pub headroom_bytes: u64,
    /// What models may have of the memory.
    pub usable_bytes: u64,
    /// What of it is left to caches.
    pub kv_budget_bytes: u64,
    /// For 1, 2, 4 and 8 rows.
    pub rows: Vec<RowsFit>,
}

/// How `subject` fits `machine`.
pub fn fit(subject: Subject<'_>, machine: &Machine, wish: &Wish) -> Fit {
    let reckoning = Reckoning::new(subject, machine, wish);
    let Reckoning { room, comfortable_tokens, .. } = reckoning;
    Fit {
        verdict: reckoning.verdict(),
        float_type: reckoning.float_type,
        weights_bytes: room.weights_bytes,
        load_peak_bytes: reckoning.load_peak_bytes(),
        token_bytes: reckoning.token_bytes(),
        transient_bytes: reckoning.transient_bytes(comfortable_tokens),
        headroom_bytes: KV_HEADROOM_BYTES,
        usable_bytes: room.usable_bytes(),
        kv_budget_bytes: reckoning.kv_budget_bytes,
        rows: ROWS.iter().map(|rows| reckoning.rows(*rows)).collect(),
    }
}

/// Bytes of the weights of `subject` once they are loaded.
pub fn weights_bytes(subject: Subject<'_>, machine: &Machine, wish: &Wish) -> u64 {
    Reckoning::new(subject, machine, wish).room.weights_bytes
}

/// Bytes that the allocator holds at most while `subject` is loaded and then runs one row of `tokens` tokens, all
/// but the last of them a prompt.
pub fn peak_bytes(subject: Subject<'_>, machine: &Machine, wish: &Wish, tokens: usize) -> u64 {
    let reckoning = Reckoning::new(subject, machine, wish);
    let running = reckoning.running_bytes(tokens);
    reckoning.load_peak_bytes().max(running)
}

/// What is worked out once of a model, a machine and a wish.
struct Reckoning<'a> {
    subject: Subject<'a>,
    machine: &'a Machine,
    float_type: FloatType,
    profile: KvProfile,
    room: Room,
    chunk_tokens: usize,
    kv_budget_bytes: u64,
    comfortable_tokens: usize,
}

impl<'a> Reckoning<'a> {
    fn new(subject: Subject<'a>, machine: &'a Machine, wish: &Wish) -> Self {
        let float_type = wish.float_type.unwrap_or_else(|| machine.float_type(subject.weights));
        let Subject { outline, weights } = subject;
        let room = Room {
            total_bytes: machine.memory_bytes,
            weights_bytes: weights.all.bytes(float_type.bytes()),
        };
        Self {
            subject,
            machine,
            float_type,
            profile: outline.kv_profile(&wish.scheme, float_type.bytes()),
            room,
            chunk_tokens: wish.chunk_tokens.unwrap_or(machine.processing.chunk_tokens()),
            kv_budget_bytes: wish.kv_budget_bytes.unwrap_or_else(|| room.kv_bytes()),
            comfortable_tokens: COMFORTABLE_TOKENS.min(outline.context_tokens),
        }
    }

    fn verdict(&self) -> Verdict {
        let smallest = self.profile.row_bytes(1);
        if self.kv_budget_bytes.min(self.room.kv_bytes()) < smallest {
            return Verdict::No;
        }
        let needed = self.running_bytes(self.comfortable_tokens).max(self.load_peak_bytes());
        let free = self.machine.available_bytes.unwrap_or(u64::MAX);
        let comfortable = self.context_tokens(1) >= self.comfortable_tokens;
        match comfortable && needed <= free.min(self.room.usable_bytes()) {
            true => Verdict::Fits,
            false => Verdict::Tight,
        }
    }

    fn rows(&self, rows: usize) -> RowsFit {
        RowsFit {
            rows,
            context_tokens: self.context_tokens(rows),
            decode_tokens_per_second: self.decode_tokens_per_second(rows),
        }
    }

    /// Tokens that each of `rows` rows may have within the budget: whole granules, as caches grow.
    fn context_tokens(&self, rows: usize) -> usize {
        let budget = self.kv_budget_bytes;
        let granules = self.subject.outline.context_tokens.div_ceil(KV_GRANULE_TOKENS);
        let fits = |granules: usize| {
            self.profile.batch_bytes(rows, granules * KV_GRANULE_TOKENS) <= budget
        };
        // Of the numbers of granules from 1 on, those that fit come first.
        let (mut least, mut beyond) = (0, granules + 1);
        while least + 1 < beyond {
            let middle = least + (beyond - least) / 2;
            if fits(middle) { least = middle } else { beyond = middle }
        }
        (least * KV_GRANULE_TOKENS).min(self.subject.outline.context_tokens)
    }

    /// Weights, and the caches and the transient of one row of `tokens` tokens.
    fn running_bytes(&self, tokens: usize) -> u64 {
        let caches = self.profile.prefill_bytes(tokens, self.chunk_tokens);
        let held = self.room.weights_bytes.saturating_add(caches);
        held.saturating_add(self.transient_bytes(tokens))
    }

    /// What the largest chunk of a prompt of `tokens` tokens takes.
    fn transient_bytes(&self, tokens: usize) -> u64 {
        let outline = self.subject.outline;
        let InFlight { gates, scores } = outline.in_flight();
        let chunk = self.chunk_tokens.min(tokens) as u64;
        // In flight at once: gates, the residual stream and its norm, queries and what attention makes of them.
        let width = gates * outline.feed_forward + 2 * outline.hidden + 2 * outline.query_width();
        let (channels, memory_values) = self.recurrent();
        let width = width.saturating_add(CHANNELS_IN_FLIGHT * channels);
        let scores = match self.machine.processing {
            Processing::Processor => scores * outline.query_heads * self.scores_of_chunk(tokens),
            // GPUs never have them whole.
            Processing::Gpu => 0,
        };
        let numbers = chunk.saturating_mul(width).saturating_add(scores);
        let numbers_bytes = numbers.saturating_mul(self.float_type.bytes());
        numbers_bytes.saturating_add(self.memory_bytes(memory_values))
    }

    /// Queries times columns of the chunk that has most: the last whole one, or the rest behind it.
    fn scores_of_chunk(&self, tokens: usize) -> u64 {
        let chunk = self.chunk_tokens.min(tokens).max(1);
        let whole = tokens / chunk * chunk;
        let rest = tokens - whole;
        (chunk as u64 * whole as u64).max(rest as u64 * tokens as u64)
    }

    /// The channels and the numbers of a memory of the largest recurrent layer; 0 where there is none.
    fn recurrent(&self) -> (u64, u64) {
        let layers = self.subject.outline.layers.iter();
        let recurrent = layers.filter_map(|layer| match *layer {
            LayerOutline::Recurrent { channels, memory_values, .. } => {
                Some((channels, memory_values))
            }
            LayerOutline::Full(_)
            | LayerOutline::Sliding { .. }
            | LayerOutline::Latent { .. }
            | LayerOutline::Shared => None,
        });
        recurrent.max().unwrap_or((0, 0))
    }

    /// What a piece of a recurrent layer's prompt takes: on a processor about one and a half memories, in f32, for
    /// each token.
    fn memory_bytes(&self, values: u64) -> u64 {
        let bytes = values.saturating_mul(size_of::<f32>() as u64);
        match self.machine.processing {
            Processing::Processor => bytes.saturating_mul(3 * RECURRENCE_PIECE_TOKENS as u64) / 2,
            Processing::Gpu => bytes,
        }
    }

    /// Weights, and what reading them takes beside them: the source of a part that is cast, or the marks of
    /// numbers that are none in the largest tensor.
    fn load_peak_bytes(&self) -> u64 {
        let weights = self.subject.weights;
        let value_bytes = self.float_type.bytes();
        self.room.weights_bytes.saturating_add(weights.beside_bytes(value_bytes))
    }

    fn token_bytes(&self) -> u64 {
        // Beyond the windows.
        let far = 1 << 31;
        let more = self.profile.row_bytes(far + KV_GRANULE_TOKENS) - self.profile.row_bytes(far);
        more / KV_GRANULE_TOKENS as u64
    }

    /// Every step reads the weights once and each row's caches (Pope et al. 2022, section 2.1).
    fn decode_tokens_per_second(&self, rows: usize) -> Option<f64> {
        let bandwidth = self.machine.bandwidth?;
        // MLX unpacks matrices in plain loops there: computing takes longer than reading.
        let packed = self.subject.outline.packing.is_some();
        if packed && self.machine.processing == Processing::Processor {
            return None;
        }
        let tokens = USUAL_TOKENS.min(self.subject.outline.context_tokens);
        let caches = rows as f64 * self.profile.row_bytes(tokens) as f64;
        let bytes = self.step_weights_bytes(rows) + caches;
        Some(rows as f64 * bandwidth.bytes_per_second / bytes.max(1.0))
    }

    /// Weights that a step of `rows` rows reads: rows of a table are next to nothing, and of experts as many as
    /// the rows choose, or all.
    fn step_weights_bytes(&self, rows: usize) -> f64 {
        let bytes = |part: &Weighed| part.bytes(self.float_type.bytes());
        let WeightTally { all, gathered, experts, .. } = self.subject.weights;
        let always = bytes(all).saturating_sub(bytes(gathered)).saturating_sub(bytes(experts));
        let share = match self.subject.outline.experts {
            Some((chosen, of)) => (rows as f64 * chosen as f64 / of as f64).min(1.0),
            None => 1.0,
        };
        always as f64 + share * bytes(experts) as f64
    }
}

impl Processing {
    fn chunk_tokens(self) -> usize {
        match self {
            Self::Processor => PREFILL_CHUNK_TOKENS_CPU,
            Self::Gpu => PREFILL_CHUNK_TOKENS_DEFAULT,
        }
    }
}
