//! What a request may say about sampling, already validated.

/// How a row picks its tokens. Filters act on log-probabilities before the temperature does, in
/// mlx-lm's order: top_p, min_p, top_k (`sample_utils.py`, 0.32.2).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 picks the most likely token and ignores the filters.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose mass reaches this; active strictly between 0 and 1.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 is off.
    pub min_p: f32,
    /// Keeps this many most likely tokens; 0 is off.
    pub top_k: u32,
    /// Makes the row's draws a function of this and of the sample's index alone.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: None }
    }
}

impl SamplingParams {
    /// Whether the row takes the most likely token at each step.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}
