//! What a request may say about sampling, already validated.

use std::sync::Arc;

/// Tokens that a penalty looks back on when nobody says (mlx-lm 0.32.2's `*_context_size`).
pub const PENALTY_CONTEXT_TOKENS_DEFAULT: usize = 20;

/// How a row picks its tokens, and what it tells of the picks.
///
/// Logits go through the processors, in mlx-lm's order: `logit_bias`, `repetition`, `presence`,
/// `frequency`; then they become log-probabilities. Filters act on those before the temperature does, in
/// mlx-lm's order: `top_p`, `min_p`, `xtc`, `top_k` (`sample_utils.py`, 0.32.2).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 picks the most likely token and ignores the filters.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose mass reaches this; active strictly between 0 and 1.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 is off.
    pub min_p: f32,
    /// Sometimes drops the most likely tokens.
    pub xtc: Xtc,
    /// Keeps this many most likely tokens; 0 is off.
    pub top_k: u32,
    /// Makes the row's draws a function of this and of the sample's index alone.
    pub seed: Option<u64>,
    /// Terms added to the logits of single tokens, each token once.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Divides positive logits of tokens that were seen and multiplies negative ones; 1 is off (CTRL,
    /// Keskar et al. 2019).
    pub repetition: Penalty,
    /// Is subtracted once from the logit of each token that was seen; 0 is off.
    pub presence: Penalty,
    /// Is subtracted from a token's logit for every time it was seen; 0 is off.
    pub frequency: Penalty,
    /// Tells each token's log-probability, and those of this many most likely tokens beside it.
    pub logprobs: Option<u32>,
}

/// A penalty on tokens of the prompt and of the answer so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalty {
    /// How hard it is.
    pub amount: f32,
    /// How many tokens, counted back from the newest, it looks at; 0 is all.
    pub context_tokens: usize,
}

/// "Exclude top choices" (as mlx-lm's `apply_xtc`): all tokens more likely than the threshold are dropped
/// but the least likely of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Xtc {
    /// The chance that a draw drops any; 0 is off.
    pub probability: f32,
    /// Tokens at most as likely as this are never dropped. Above 0.5 there is never more than one
    /// likelier token, so nothing is.
    pub threshold: f32,
    /// Tokens that are never dropped: line breaks and what ends an answer.
    pub exempt: Arc<[u32]>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            xtc: Xtc::default(),
            top_k: 0,
            seed: None,
            logit_bias: Arc::default(),
            repetition: Penalty::of(1.0),
            presence: Penalty::of(0.0),
            frequency: Penalty::of(0.0),
            logprobs: None,
        }
    }
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1, exempt: Arc::default() }
    }
}

impl Penalty {
    /// A penalty over the default context.
    pub fn of(amount: f32) -> Self {
        Self { amount, context_tokens: PENALTY_CONTEXT_TOKENS_DEFAULT }
    }
}

impl SamplingParams {
    /// Whether the row takes the most likely token at each step.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// The request field of the first of these that is defined for tokens picked one after the other alone,
    /// and not for the places of a canvas.
    pub fn one_by_one_field(&self) -> Option<&'static str> {
        let asked = [
            ("logit_bias", !self.logit_bias.is_empty()),
            ("repetition_penalty", self.active_repetition().is_some()),
            ("presence_penalty", self.active_presence().is_some()),
            ("frequency_penalty", self.active_frequency().is_some()),
            ("xtc_probability", self.xtc.probability > 0.0),
            ("logprobs", self.logprobs.is_some()),
        ];
        asked.into_iter().find_map(|(field, is_asked)| is_asked.then_some(field))
    }

    /// Whether logits are changed before they become log-probabilities.
    pub fn processes(&self) -> bool {
        !self.logit_bias.is_empty() || self.penalties().any(|_| true)
    }

    /// The penalties that do something.
    pub(super) fn penalties(&self) -> impl Iterator<Item = Penalty> {
        [self.active_repetition(), self.active_presence(), self.active_frequency()]
            .into_iter()
            .flatten()
    }

    /// The repetition penalty, if it does something; mlx-lm reads 0 as off too.
    pub(super) fn active_repetition(&self) -> Option<Penalty> {
        (self.repetition.amount != 0.0 && self.repetition.amount != 1.0).then_some(self.repetition)
    }

    /// The presence penalty, if it does something.
    pub(super) fn active_presence(&self) -> Option<Penalty> {
        (self.presence.amount != 0.0).then_some(self.presence)
    }

    /// The frequency penalty, if it does something.
    pub(super) fn active_frequency(&self) -> Option<Penalty> {
        (self.frequency.amount != 0.0).then_some(self.frequency)
    }
}
