//! A request before it is a row, and the rules a row must meet.

use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::card::ModelCard;
use super::guidance::Structure;
use super::placement::{Ground, Placement, RequestShape, place};
use crate::config::SchedulerConfig;
use crate::error::{Code, Error, Result};
use crate::limits;
use crate::output::Tool;
use crate::sampling::SamplingParams;
use crate::scheduler::{self, Priority, Purpose, RowSpec};

/// Below this the scaled log-probabilities leave f32's range; the limit is the greedy choice.
const TEMPERATURE_MIN: f32 = 1e-6;
/// Above this every kept token is equally likely in f32.
const TEMPERATURE_MAX: f32 = 1e6;

/// The client of a request that does not say who asks.
pub const UNNAMED_CLIENT: &str = "unknown";

/// What a client wants generated, not yet held against a model.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Unique among live requests; the row has the same.
    pub id: String,
    /// Who asks, for people and statistics.
    pub client: Arc<str>,
    /// What comes before the answer.
    pub prompt: Prompt,
    /// Tokens to generate at most. Unset means as many as the context holds, as the model's default
    /// allows and as fit the KV budget, whichever is least: a row reserves the bytes of all tokens
    /// that it may generate, so unset must not mean a whole context.
    pub max_tokens: Option<NonZeroUsize>,
    /// Who goes first.
    pub priority: Priority,
    /// How tokens are picked; numbers are in their ranges.
    pub sampling: SamplingParams,
    /// Strings that end the visible answer, and are no part of it.
    pub stop: Vec<String>,
    /// What the answer must look like, if anything.
    pub structure: Option<Structure>,
    /// The tools of a chat.
    pub tools: ToolUse,
    /// Whether a chat's model thinks first, and how much.
    pub reasoning: Reasoning,
    /// Further variables of a chat's template; they win over what the other fields come to.
    pub template_variables: Map<String, Value>,
}

impl GenerateRequest {
    /// A request that leaves all but the prompt to the defaults.
    pub fn new(id: impl Into<String>, prompt: Prompt) -> Self {
        Self {
            id: id.into(),
            client: UNNAMED_CLIENT.into(),
            prompt,
            max_tokens: None,
            priority: Priority::default(),
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            structure: None,
            tools: ToolUse::default(),
            reasoning: Reasoning::default(),
            template_variables: Map::new(),
        }
    }

    /// Bytes of text that have to be tokenized, roughly.
    pub(super) fn text_bytes(&self) -> usize {
        let schemas = self.tools.tools.iter().filter_map(|tool| tool.parameters.as_ref());
        let schemas = schemas.flat_map(Map::values).map(string_bytes);
        self.prompt.text_bytes() + schemas.sum::<usize>()
    }
}

/// Which tools the model may call, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// What there is to call.
    pub tools: Arc<[Tool]>,
    /// Whether to call.
    pub choice: ToolChoice,
    /// Whether one answer may call several times.
    pub parallel: bool,
}

impl Default for ToolUse {
    fn default() -> Self {
        Self { tools: Arc::default(), choice: ToolChoice::Auto, parallel: true }
    }
}

/// Whether the model calls tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It does not.
    None,
    /// It decides.
    #[default]
    Auto,
    /// It calls at least one.
    Required,
    /// It calls the tool of this name.
    Named(String),
}

/// How a model is asked to think; by default as its template does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reasoning {
    /// Whether it thinks first; unset leaves it to the model.
    pub enabled: Option<bool>,
    /// How much; unset leaves it to the model.
    pub effort: Option<ReasoningEffort>,
}

/// How much a model is asked to think, where it was taught degrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningEffort {
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// As much as possible.
    ExtraHigh,
}

impl ReasoningEffort {
    /// The effort of that name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Minimal, Self::Low, Self::Medium, Self::High, Self::ExtraHigh];
        all.into_iter().find(|effort| effort.name() == name)
    }

    /// The name in requests and templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::ExtraHigh => "xhigh",
        }
    }
}

/// What comes before the answer.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Messages for the model's chat template, in OpenAI's form with a string as `content`: of the
    /// roles `system`, `user`, `assistant` (perhaps with `tool_calls`, whose arguments are objects or
    /// their text, and `reasoning_content`) and `tool` (with `tool_call_id`).
    Chat {
        /// In order.
        messages: Vec<Value>,
    },
    /// Text that is continued.
    Text(String),
    /// Token ids that are continued.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// The request field it came by.
    pub(super) fn param(&self) -> &'static str {
        match self {
            Self::Chat { .. } => "messages",
            Self::Text(_) | Self::Tokens(_) => "prompt",
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Chat { messages } => messages.iter().map(string_bytes).sum(),
            Self::Text(text) => text.len(),
            Self::Tokens(_) => 0,
        }
    }
}

fn string_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(string_bytes).sum(),
        Value::Object(fields) => fields.values().map(string_bytes).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Holds a request with the prompt `tokens` against the model and the budget, places it and makes its
/// row.
pub(super) fn row(
    request: &GenerateRequest,
    tokens: Vec<u32>,
    card: &ModelCard,
    config: &SchedulerConfig,
    stop_tokens: Arc<[u32]>,
) -> Result<(RowSpec, Placement)> {
    let draft = Draft::new(request, tokens, card, config.kv_budget_bytes)?;
    let ground = Ground { capabilities: &card.capabilities, batch_rows_max: config.batch_rows_max };
    let placement = place(draft.shape(), &ground);
    let spec = draft.placed(&placement, stop_tokens)?;
    match config.kv_budget_bytes.and_then(|budget| scheduler::over_budget(&spec, budget)) {
        Some(error) => Err(error),
        None => Ok((spec, placement)),
    }
}

/// A request that fits its model, before it has a lane.
struct Draft {
    id: String,
    client: Arc<str>,
    priority: Priority,
    prompt: Vec<u32>,
    max_tokens: usize,
    kv_bytes: u64,
    sampling: SamplingParams,
}

impl Draft {
    fn new(
        request: &GenerateRequest,
        prompt: Vec<u32>,
        card: &ModelCard,
        kv_budget_bytes: Option<u64>,
    ) -> Result<Self> {
        check_stop_strings(&request.stop)?;
        check_biased_tokens(&request.sampling, card)?;
        check_one_by_one(&request.sampling, card)?;
        let param = request.prompt.param();
        check_tokens(&prompt, card, param)?;
        let room = context_room(prompt.len(), card, param)?;
        let max_tokens = match request.max_tokens {
            Some(most) => most.get().min(room),
            None => unasked_tokens(prompt.len(), room, card, kv_budget_bytes),
        };
        Ok(Self {
            id: request.id.clone(),
            client: Arc::clone(&request.client),
            priority: request.priority,
            max_tokens,
            kv_bytes: card.kv.row_bytes(prompt.len() + max_tokens),
            prompt,
            sampling: normalized(&request.sampling, card.vocab_size),
        })
    }

    fn shape(&self) -> RequestShape {
        RequestShape {
            prompt_tokens: self.prompt.len(),
            max_tokens: self.max_tokens,
            greedy: self.sampling.is_greedy(),
        }
    }

    /// The row, in the lane of `placement`, which must be one for it.
    fn placed(self, placement: &Placement, stop_tokens: Arc<[u32]>) -> Result<RowSpec> {
        placement.check_shape(&self.shape())?;
        Ok(RowSpec {
            id: self.id,
            client: self.client,
            lane: placement.lane,
            lane_reasons: placement.reason_texts().into(),
            priority: self.priority,
            prompt: self.prompt,
            boundaries: Vec::new(),
            max_tokens: self.max_tokens,
            kv_bytes: self.kv_bytes,
            stop_tokens,
            sampling: self.sampling,
            grammar: None,
            purpose: Purpose::Answer,
        })
    }
}

/// Tokens that a request may generate which does not say how many; at least 1.
fn unasked_tokens(
    prompt_tokens: usize,
    room: usize,
    card: &ModelCard,
    kv_budget_bytes: Option<u64>,
) -> usize {
    let most = card.max_tokens_default.clamp(1, room);
    let fits = |tokens: usize| {
        kv_budget_bytes.is_none_or(|budget| card.kv.row_bytes(prompt_tokens + tokens) <= budget)
    };
    // Bytes only grow with tokens: halve the range between what fits and what does not.
    let (mut low, mut high) = (1, most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// # Errors
/// `Unsupported`, naming the field, for what a model that writes in blocks has no meaning for.
fn check_one_by_one(sampling: &SamplingParams, card: &ModelCard) -> Result<()> {
    match sampling.one_by_one_field() {
        Some(field) if card.capabilities.writes_blocks => Err(card.writes_blocks(field)),
        _ => Ok(()),
    }
}

fn check_stop_strings(stop: &[String]) -> Result<()> {
    let most = limits::STOP_STRINGS_MAX;
    if stop.len() > most {
        let message = format!("`stop` holds {} strings, and {most} are allowed", stop.len());
        return Err(Error::invalid("stop", message));
    }
    if stop.iter().any(String::is_empty) {
        return Err(Error::invalid("stop", "`stop` holds an empty string"));
    }
    let most = limits::STOP_STRING_BYTES_MAX;
    match stop.iter().map(String::len).max() {
        Some(longest) if longest > most => {
            let message = format!("`stop` has a string of {longest} bytes, and {most} are allowed");
            Err(Error::invalid("stop", message))
        }
        _ => Ok(()),
    }
}

fn check_biased_tokens(sampling: &SamplingParams, card: &ModelCard) -> Result<()> {
    let mut biased = sampling.logit_bias.iter().map(|(token, _)| *token);
    biased.find(|token| *token as usize >= card.vocab_size).map_or(Ok(()), |token| {
        let last = card.vocab_size.saturating_sub(1);
        let message =
            format!("`logit_bias` names token {token}, and the model's vocabulary ends at {last}");
        Err(Error::invalid("logit_bias", message))
    })
}

/// Holds the tokens of the field `param` against the model's vocabulary.
pub(super) fn check_tokens(tokens: &[u32], card: &ModelCard, param: &str) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::invalid(param, format!("`{param}` must not be empty")));
    }
    let outside = tokens.iter().position(|token| *token as usize >= card.vocab_size);
    outside.map_or(Ok(()), |index| {
        let message = format!(
            "token {index} of `{param}` is {}, and the model's vocabulary ends at {}",
            tokens[index],
            card.vocab_size.saturating_sub(1),
        );
        Err(Error::invalid(param, message))
    })
}

/// Tokens the context holds beyond the prompt; at least 1.
fn context_room(prompt_tokens: usize, card: &ModelCard, param: &str) -> Result<usize> {
    let context = card.context_tokens;
    match context.saturating_sub(prompt_tokens) {
        0 => {
            let message = format!(
                "the prompt has {prompt_tokens} tokens, and the model's context of {context} \
                 tokens has to hold it and at least one token of the answer"
            );
            Err(Error::new(Code::ContextLengthExceeded, message).with_param(param))
        }
        room => Ok(room),
    }
}

/// The same choice of tokens in numbers the samplers can take.
fn normalized(sampling: &SamplingParams, vocab_size: usize) -> SamplingParams {
    let greedy = sampling.temperature < TEMPERATURE_MIN;
    SamplingParams {
        temperature: if greedy { 0.0 } else { sampling.temperature.min(TEMPERATURE_MAX) },
        // Keeping all tokens is keeping the filter off.
        top_k: if sampling.top_k as usize >= vocab_size { 0 } else { sampling.top_k },
        ..sampling.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::dialogue::Dialogue;
    use crate::gateway::script::{TOKEN_KV_BYTES, VOCAB_SIZE, card};
    use crate::sampling::{Penalty, Xtc};
    use crate::scheduler::Lane;
    use crate::tokenizer::Tokenizer;

    fn request() -> GenerateRequest {
        GenerateRequest::new("r", Prompt::Tokens(Vec::new()))
    }

    fn spec(request: &GenerateRequest, tokens: Vec<u32>) -> Result<RowSpec> {
        spec_within(None, request, tokens)
    }

    /// The same under a KV budget.
    fn spec_within(
        kv_budget_bytes: Option<u64>,
        request: &GenerateRequest,
        tokens: Vec<u32>,
    ) -> Result<RowSpec> {
        let config = SchedulerConfig { kv_budget_bytes, ..SchedulerConfig::default() };
        row(request, tokens, &card(), &config, Arc::from([257])).map(|(spec, _)| spec)
    }

    fn refusal(request: &GenerateRequest, tokens: Vec<u32>) -> Error {
        spec(request, tokens).expect_err("it should be refused")
    }

    #[test]
    fn unset_and_too_large_max_tokens_become_what_the_context_holds() {
        for (asked, prompt_tokens, expected) in
            [(None, 96, 4000), (Some(4001), 96, 4000), (Some(9), 96, 9), (None, 4095, 1)]
        {
            let max_tokens = asked.and_then(NonZeroUsize::new);
            let request = GenerateRequest { max_tokens, ..request() };
            let spec = spec(&request, vec![1; prompt_tokens]).unwrap();
            assert_eq!((spec.max_tokens, spec.lane), (expected, Lane::Continuous));
        }
    }

    #[test]
    fn unset_max_tokens_are_the_default_at_most_and_set_ones_are_not_bound_by_it() {
        let card = ModelCard { context_tokens: 1 << 20, max_tokens_default: 300, ..card() };
        let max_tokens = |asked| {
            let request = GenerateRequest { max_tokens: NonZeroUsize::new(asked), ..request() };
            let config = SchedulerConfig::default();
            let (spec, _) = row(&request, vec![1; 9], &card, &config, [].into()).unwrap();
            spec.max_tokens
        };
        assert_eq!((max_tokens(0), max_tokens(299), max_tokens(5000)), (300, 299, 5000));
    }

    #[test]
    fn a_row_is_projected_at_its_full_length() {
        let request = GenerateRequest { max_tokens: NonZeroUsize::new(100), ..request() };
        for (prompt_tokens, columns) in [(1, 256), (156, 256), (157, 512)] {
            let spec = spec(&request, vec![1; prompt_tokens]).unwrap();
            assert_eq!(spec.kv_bytes, columns * TOKEN_KV_BYTES, "{prompt_tokens}");
        }
    }

    #[test]
    fn a_row_over_the_budget_is_refused_with_both_numbers_and_one_at_the_budget_is_not() {
        let budget = 512 * TOKEN_KV_BYTES;
        let request = GenerateRequest { max_tokens: NonZeroUsize::new(100), ..request() };
        assert!(spec_within(Some(budget), &request, vec![1; 412]).is_ok());
        let error = spec_within(Some(budget), &request, vec![1; 413]).unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::OverBudget, Some("max_tokens")));
        for number in [768 * TOKEN_KV_BYTES, budget, 413, 100] {
            assert!(error.message().contains(&number.to_string()), "{number}: {error}");
        }
    }

    #[test]
    fn unset_max_tokens_shrink_to_what_the_budget_holds_while_anything_fits() {
        let budget = Some(512 * TOKEN_KV_BYTES);
        let max_tokens = |prompt_tokens| {
            spec_within(budget, &request(), vec![1; prompt_tokens]).map(|spec| spec.max_tokens)
        };
        assert_eq!(max_tokens(1).unwrap(), 511);
        assert_eq!(max_tokens(500).unwrap(), 12);
        assert_eq!(max_tokens(511).unwrap(), 1);
        assert_eq!(max_tokens(512).unwrap_err().code(), Code::OverBudget);
    }

    #[test]
    fn a_prompt_that_leaves_no_room_is_refused_with_both_numbers() {
        for prompt_tokens in [4096, 5000] {
            let error = refusal(&request(), vec![1; prompt_tokens]);
            assert_eq!(error.code(), Code::ContextLengthExceeded);
            assert!(error.message().contains(&prompt_tokens.to_string()), "{error}");
            assert!(error.message().contains("4096"), "{error}");
        }
    }

    #[test]
    fn empty_prompts_and_foreign_tokens_are_refused() {
        assert_eq!(refusal(&request(), Vec::new()).param(), Some("prompt"));
        let error = refusal(&request(), vec![1, 2, 258]);
        let expected = "token 2 of `prompt` is 258, and the model's vocabulary ends at 257";
        assert_eq!((error.code(), error.message()), (Code::InvalidRequest, expected));
        assert!(spec(&request(), vec![257]).is_ok());
    }

    #[test]
    fn stop_strings_are_bounded_in_number_and_size_and_never_empty() {
        let refused = |stop: Vec<String>| {
            let request = GenerateRequest { stop, ..request() };
            spec(&request, vec![1]).err().and_then(|error| error.param().map(str::to_owned))
        };
        let (most, longest) = (limits::STOP_STRINGS_MAX, limits::STOP_STRING_BYTES_MAX);
        assert_eq!(refused(vec!["x".repeat(longest); most]), None);
        assert_eq!(refused(vec!["x".to_owned(); most + 1]).as_deref(), Some("stop"));
        assert_eq!(refused(vec!["x".repeat(longest + 1)]).as_deref(), Some("stop"));
        assert_eq!(refused(vec!["x".to_owned(), String::new()]).as_deref(), Some("stop"));
    }

    #[test]
    fn what_is_picked_one_by_one_is_refused_by_name_for_a_model_that_writes_blocks() {
        let mut blocks = card();
        blocks.capabilities.writes_blocks = true;
        let plain = SamplingParams { temperature: 0.5, top_k: 3, ..SamplingParams::default() };
        let asks = [
            ("logit_bias", SamplingParams { logit_bias: [(1, 2.0)].into(), ..plain.clone() }),
            (
                "repetition_penalty",
                SamplingParams { repetition: Penalty::of(1.1), ..plain.clone() },
            ),
            ("presence_penalty", SamplingParams { presence: Penalty::of(0.1), ..plain.clone() }),
            ("frequency_penalty", SamplingParams { frequency: Penalty::of(0.1), ..plain.clone() }),
            ("logprobs", SamplingParams { logprobs: Some(0), ..plain.clone() }),
        ];
        let run = |card: &ModelCard, sampling: &SamplingParams| {
            let request = GenerateRequest { sampling: sampling.clone(), ..request() };
            row(&request, vec![1], card, &SchedulerConfig::default(), [].into())
        };
        assert!(run(&blocks, &plain).is_ok());
        for (field, sampling) in asks {
            assert!(run(&card(), &sampling).is_ok(), "{field}");
            let error = run(&blocks, &sampling).unwrap_err();
            assert_eq!((error.code(), error.param()), (Code::Unsupported, Some(field)));
        }
    }

    #[test]
    fn sampling_reaches_the_row_in_numbers_that_samplers_can_take() {
        let sampled = |temperature, top_k| {
            let sampling = SamplingParams { temperature, top_k, ..SamplingParams::default() };
            let sampling =
                spec(&GenerateRequest { sampling, ..request() }, vec![1]).unwrap().sampling;
            (sampling.temperature, sampling.top_k)
        };
        let vocab = u32::try_from(VOCAB_SIZE).unwrap();
        assert_eq!(sampled(0.7, vocab - 1), (0.7, vocab - 1));
        assert_eq!(sampled(1e-40, vocab), (0.0, 0));
        assert_eq!(sampled(f32::MAX, u32::MAX), (TEMPERATURE_MAX, 0));
    }

    #[test]
    fn a_bias_on_a_token_that_the_model_does_not_have_is_refused() {
        let biased = |token| {
            let sampling = SamplingParams {
                logit_bias: [(1, 2.0), (token, -1.0)].into(),
                ..Default::default()
            };
            spec(&GenerateRequest { sampling, ..request() }, vec![1])
        };
        let last = u32::try_from(VOCAB_SIZE).unwrap() - 1;
        assert!(biased(last).is_ok());
        for token in [last + 1, u32::MAX] {
            let error = biased(token).unwrap_err();
            assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("logit_bias")));
            assert!(error.message().contains(&token.to_string()), "{error}");
        }
    }

    #[test]
    fn no_way_of_picking_tokens_changes_the_lane() {
        let penalty = Penalty { amount: 1.5, context_tokens: 0 };
        for sampling in [
            SamplingParams { temperature: 0.7, top_p: 0.9, top_k: 4, ..Default::default() },
            SamplingParams { seed: Some(1), logprobs: Some(5), ..Default::default() },
            SamplingParams { repetition: penalty, presence: penalty, ..Default::default() },
            SamplingParams {
                logit_bias: [(1, 2.0)].into(),
                frequency: penalty,
                ..Default::default()
            },
            SamplingParams {
                xtc: Xtc { probability: 0.5, ..Xtc::default() },
                ..Default::default()
            },
        ] {
            let spec = spec(&GenerateRequest { sampling, ..request() }, vec![1]).unwrap();
            assert_eq!((spec.lane, spec.lane_reasons.len()), (Lane::Continuous, 0));
        }
    }

    #[test]
    fn a_chat_with_a_model_that_has_no_template_is_told_what_works_instead() {
        let dir = tempfile::tempdir().unwrap();
        let words = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        });
        std::fs::write(dir.path().join("tokenizer.json"), words.to_string()).unwrap();
        let prompt = Prompt::Chat { messages: vec![serde_json::json!({"role": "user"})] };
        let dialogue = Dialogue::new(Tokenizer::load(dir.path()).unwrap(), false);
        let error = dialogue.prepare(&GenerateRequest::new("r", prompt), false).unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("messages")));
        assert!(error.hint().is_some());
    }
}
