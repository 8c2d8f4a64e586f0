//! What is known of a sampled token: plain numbers.

/// One sampled token of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// What the row tells of it, if it was asked to.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// The natural-log probabilities that a token was picked from: after the processors, before the filters
/// and the temperature, in the logits' own type, as mlx-lm 0.32.2 reports them (`generate.py`).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// That of the token that was sampled.
    pub chosen: f32,
    /// The most likely tokens with theirs, as many as were asked for; the likeliest first, equals by id.
    pub top: Vec<(u32, f32)>,
}

impl From<u32> for Sampled {
    /// A token of which nothing more is told.
    fn from(token: u32) -> Self {
        Self { token, logprobs: None }
    }
}
