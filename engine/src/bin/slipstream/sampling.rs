//! The flags that say how tokens are picked when a request does not.

use slipstream_engine::sampling::{PenaltyOverrides, SamplingOverrides, SamplingParams};

/// They win over what the model's generation_config.json says.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling, for requests that do not say")]
pub(crate) struct SamplingArguments {
    /// How evenly tokens are drawn; 0 takes the most likely one [default: the model's, else 0].
    #[arg(long, visible_alias = "temp", value_name = "0..2", value_parser = within::<0, 2>)]
    temperature: Option<f32>,
    /// Keep the smallest set of tokens with this mass [default: the model's, else 1].
    #[arg(long, value_name = "0..1", value_parser = within::<0, 1>)]
    top_p: Option<f32>,
    /// Keep this many most likely tokens; 0 keeps all [default: the model's, else 0].
    #[arg(long, value_name = "TOKENS")]
    top_k: Option<u32>,
    /// Keep tokens at least this fraction as likely as the most likely one [default: the model's, else
    /// 0].
    #[arg(long, value_name = "0..1", value_parser = within::<0, 1>)]
    min_p: Option<f32>,
    /// Divide the logits of recent tokens by this; 1 is off [default: the model's, else 1].
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    repetition_penalty: Option<f32>,
    /// Subtract this from the logits of recent tokens [default: 0].
    #[arg(long, value_name = "-2..2", value_parser = within::<-2, 2>, allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract this from the logit of a token for each time that it occurs among recent ones
    /// [default: 0].
    #[arg(long, value_name = "-2..2", value_parser = within::<-2, 2>, allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
}

impl SamplingArguments {
    /// What the flags say.
    pub(crate) fn overrides(&self) -> SamplingOverrides {
        let penalty = |amount| PenaltyOverrides { amount, context_tokens: None };
        SamplingOverrides {
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            top_k: self.top_k,
            repetition: penalty(self.repetition_penalty),
            presence: penalty(self.presence_penalty),
            frequency: penalty(self.frequency_penalty),
            ..SamplingOverrides::default()
        }
    }
}

/// How tokens are picked, in a line: what is on, and nothing of what is off.
pub(crate) fn described(params: &SamplingParams) -> String {
    let built_in = SamplingParams::default();
    let penalties = [
        ("repetition penalty", params.repetition.amount, built_in.repetition.amount),
        ("presence penalty", params.presence.amount, built_in.presence.amount),
        ("frequency penalty", params.frequency.amount, built_in.frequency.amount),
    ];
    let filters = [
        ("temperature", params.temperature, built_in.temperature),
        ("top_p", params.top_p, built_in.top_p),
        ("top_k", params.top_k as f32, built_in.top_k as f32),
        ("min_p", params.min_p, built_in.min_p),
    ];
    let filters = if params.is_greedy() { &filters[..0] } else { &filters[..] };
    let greedy = params.is_greedy().then(|| "greedy".to_owned());
    let on = filters.iter().chain(&penalties).filter(|(_, amount, off)| amount != off);
    let on = on.map(|(name, amount, _)| format!("{name} {amount}"));
    greedy.into_iter().chain(on).collect::<Vec<_>>().join(", ")
}

fn within<const LEAST: i8, const MOST: i8>(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (f32::from(LEAST)..=f32::from(MOST)).contains(&number) {
        true => Ok(number),
        false => Err(format!("must be between {LEAST} and {MOST}")),
    }
}

fn factor(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("must be a number that is at least 0".to_owned()),
    }
}
