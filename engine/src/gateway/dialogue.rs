//! How requests become prompts of one model, and its text becomes answers.
//!
//! What a model's files say of that is read once ([`Dialogue::new`]): the format of its reasoning and
//! calls, what its chat template can take, and the control tokens that texts must not spell.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::billing;
use super::history::{Manners, describe_tools};
use super::request::{GenerateRequest, Prompt, Reasoning, ReasoningEffort, ToolChoice};
use crate::error::{Error, Result};
use crate::limits::KEPT_PROMPT_TOKENS_MIN;
use crate::output::{
    AnswerFormat, AnswerParser, Beginning, ParserOptions, ReasoningFormat, ToolFormat,
};
use crate::tokenizer::{ChatOptions, ChatTemplate, ControlTokens, Detokenizer, Tokenizer};

/// Tokens around the results of tools in templates, which are not special everywhere.
const RESULT_TOKENS: [&str; 2] = ["<tool_response>", "</tool_response>"];

/// One model's ways of being spoken to.
#[derive(Debug)]
pub(super) struct Dialogue {
    tokenizer: Tokenizer,
    format: AnswerFormat,
    /// None for a model without a chat template.
    manners: Option<Manners>,
    /// What texts of others must not spell.
    control: ControlTokens,
    /// What earlier answers must not: they may hold the model's own markup.
    control_in_answers: ControlTokens,
    /// The same where they begin reasoning that they do not end.
    control_in_open_answers: ControlTokens,
    /// Special tokens that are text for the parser, without and with calls.
    shown: [Arc<[u32]>; 2],
    /// Whether the line of [`billing`] stays in prompts.
    keeps_billing_line: bool,
}

/// A prompt, ready to be run.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) tokens: Vec<u32>,
    /// After how many of them the system part and the last turn end.
    pub(super) boundaries: Vec<usize>,
    /// Where the answer to it begins.
    pub(super) beginning: Beginning,
}

impl Dialogue {
    /// The dialogue of the model whose tokenizer this is.
    pub(super) fn new(tokenizer: Tokenizer, keeps_billing_line: bool) -> Self {
        let format = answer_format(&tokenizer);
        let manners = tokenizer.chat_template().map(Manners::of);
        let markup = format.tokens(true);
        let also: Vec<&str> = markup.iter().copied().chain(RESULT_TOKENS).collect();
        let reasoning = format.reasoning.map(ReasoningFormat::markers);
        let (begin, end) = reasoning.unwrap_or_default();
        // Where the answer begins is told from the prompt's text, so no text may spell these at all.
        let control = ControlTokens::new(&tokenizer, &also).with(&[begin, end]);
        let shown = |calls| -> Arc<[u32]> {
            let tokens = format.tokens(calls);
            tokens.into_iter().filter_map(|token| tokenizer.token_id(token)).collect()
        };
        Self {
            shown: [shown(false), shown(true)],
            control_in_answers: control.without(&markup).without(&[begin, end]),
            control_in_open_answers: control.without(&markup).with(&[begin, end]),
            control,
            manners,
            format,
            tokenizer,
            keeps_billing_line,
        }
    }

    /// The prompt of `request`. Its boundaries are looked for where it is to be `cut`: each takes the template
    /// another rendering.
    ///
    /// # Errors
    /// `InvalidRequest` for messages that the template refuses, in its words.
    pub(super) fn prepare(&self, request: &GenerateRequest, cut: bool) -> Result<Prepared> {
        let plain =
            |tokens| Prepared { tokens, boundaries: Vec::new(), beginning: Beginning::Text };
        match &request.prompt {
            Prompt::Chat { messages } => {
                let messages = match self.keeps_billing_line {
                    true => messages.into(),
                    false => billing::without_line(messages),
                };
                let text = self.render(&messages, request, true)?;
                let beginning = self.format.beginning(&text);
                let ends = cut.then(|| self.part_ends(&messages, request, &text));
                let ends = ends.unwrap_or_default();
                // A template writes its special tokens itself.
                let (tokens, boundaries) = self.tokenizer.encode_with_marks(&text, false, &ends)?;
                Ok(Prepared { tokens, boundaries, beginning })
            }
            Prompt::Text(text) => self.tokenizer.encode(text, true).map(plain),
            Prompt::Tokens(tokens) => Ok(plain(tokens.clone())),
        }
    }

    /// The model's tokenizer.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How the answer to `request` writes reasoning and calls.
    pub(super) fn format_of(&self, request: &GenerateRequest) -> AnswerFormat {
        if may_call(request) { self.format_of_calls() } else { self.format }
    }

    /// What turns the tokens of the answer into text, and the text into parts.
    pub(super) fn reader(
        &self,
        request: &GenerateRequest,
        beginning: Beginning,
    ) -> (Detokenizer, AnswerParser) {
        let Prompt::Chat { .. } = request.prompt else {
            return (self.tokenizer.detokenizer(), AnswerParser::plain());
        };
        let calls = may_call(request);
        let format = self.format_of(request);
        let options = ParserOptions {
            tools: if calls { Arc::clone(&request.tools.tools) } else { Arc::default() },
            beginning,
            id_seed: request.id.clone(),
        };
        let shown = Arc::clone(&self.shown[usize::from(calls)]);
        (self.tokenizer.detokenizer_showing(shown), AnswerParser::new(&format, options))
    }

    /// The format of answers to requests with tools.
    fn format_of_calls(&self) -> AnswerFormat {
        let told = self.manners.as_ref().is_some_and(|manners| manners.tools);
        // A model that was told of tools in our words answers in them.
        let tools = self.format.tools.filter(|_| told).unwrap_or(ToolFormat::Json);
        AnswerFormat { tools: Some(tools), ..self.format }
    }

    /// Where in `text`, the prompt of `messages`, its system part and its last turn end, in bytes, ascending:
    /// what comes before is the same in other conversations with that system part, and in the next turns of this
    /// one. A template that does not render parts alone has none.
    fn part_ends(&self, messages: &[Value], request: &GenerateRequest, text: &str) -> Vec<usize> {
        if text.len() < KEPT_PROMPT_TOKENS_MIN {
            return Vec::new();
        }
        let is_system = |message: &&Value| message["role"] == "system";
        let system: Vec<Value> = messages.iter().take_while(is_system).cloned().collect();
        // Two turns that have nothing in common, one of which differs from the first turn at its first letter.
        let with_turn = |turn: &str| {
            let turn = json!({"role": "user", "content": turn});
            let messages = [system.as_slice(), &[turn]].concat();
            Some(common_bytes(text, &self.render(&messages, request, true).ok()?))
        };
        let has_system = !system.is_empty() || may_call(request);
        let system_end = has_system.then(|| Some(with_turn("a")?.min(with_turn("b")?))).flatten();
        let turn_end = self.render(messages, request, false).ok();
        let turn_end = turn_end.map(|turns| common_bytes(text, &turns));
        let mut ends: Vec<usize> = [system_end, turn_end].into_iter().flatten().collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn render(
        &self,
        messages: &[Value],
        request: &GenerateRequest,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let (Some(template), Some(manners)) = (self.tokenizer.chat_template(), &self.manners)
        else {
            return Err(Error::invalid("messages", "the model has no chat template")
                .with_hint("`/v1/completions` continues plain text"));
        };
        let mut messages: Vec<Value> =
            messages.iter().map(|message| self.without_control(message)).collect();
        let mut tools = may_call(request).then(|| self.described(request));
        if let Some(tools) = tools.take_if(|_| !manners.tools) {
            describe_tools(&mut messages, &tools);
        }
        let messages = manners.adapt(messages);
        let extra = self.variables(request);
        let options = ChatOptions { add_generation_prompt, tools, extra };
        template.render(&messages, &options)
    }

    fn described(&self, request: &GenerateRequest) -> Vec<Value> {
        let tools = request.tools.tools.iter();
        tools.map(|tool| break_up(&tool.template_value(), &self.control)).collect()
    }

    /// The message with every control token that its texts spell broken up.
    fn without_control(&self, message: &Value) -> Value {
        let answer = message["role"] == "assistant";
        let Value::Object(fields) = message else {
            return message.clone();
        };
        let fields = fields.iter().map(|(name, value)| {
            let own = answer && name != "tool_calls";
            let control = match value.as_str() {
                _ if !own => &self.control,
                Some(text) if self.format.leaves_reasoning_open(text) => {
                    &self.control_in_open_answers
                }
                _ => &self.control_in_answers,
            };
            (name.clone(), break_up(value, control))
        });
        Value::Object(fields.collect())
    }

    /// What the request says of reasoning in the names that templates have for it, and its own variables.
    fn variables(&self, request: &GenerateRequest) -> Map<String, Value> {
        let Reasoning { enabled, effort } = request.reasoning;
        let mut variables = Map::new();
        if let Some(enabled) = enabled {
            variables.insert("enable_thinking".to_owned(), enabled.into());
            variables.insert("thinking".to_owned(), enabled.into());
        }
        if let Some(effort) = effort {
            let (name, value) = self.effort(effort);
            variables.insert(name.to_owned(), value.into());
        }
        variables.extend(request.template_variables.clone());
        variables
    }

    /// Templates that know three degrees print whatever they are given.
    fn effort(&self, effort: ReasoningEffort) -> (&'static str, &'static str) {
        use ReasoningEffort::{ExtraHigh, High, Low, Medium, Minimal};
        match (self.format.tools, effort) {
            (Some(ToolFormat::KimiK3), ExtraHigh) => ("thinking_effort", "max"),
            (Some(ToolFormat::KimiK3), Minimal) => ("thinking_effort", "low"),
            (Some(ToolFormat::KimiK3), effort) => ("thinking_effort", effort.name()),
            (Some(ToolFormat::Harmony), Minimal | Low) => ("reasoning_effort", "low"),
            (Some(ToolFormat::Harmony), High | ExtraHigh) => ("reasoning_effort", "high"),
            (_, Minimal | Low | Medium | High | ExtraHigh) => ("reasoning_effort", effort.name()),
        }
    }
}

/// The length of what two texts begin with alike.
fn common_bytes(left: &str, right: &str) -> usize {
    left.bytes().zip(right.bytes()).take_while(|(left, right)| left == right).count()
}

/// Whether the model is told of tools and its calls are looked for.
fn may_call(request: &GenerateRequest) -> bool {
    !request.tools.tools.is_empty() && request.tools.choice != ToolChoice::None
}

fn answer_format(tokenizer: &Tokenizer) -> AnswerFormat {
    let source = tokenizer.chat_template().map_or("", ChatTemplate::source);
    let format = AnswerFormat::detect(source, |token| tokenizer.token_id(token).is_some());
    tokenizer.tool_parser().map_or(format, |name| format.with_tool_parser(name))
}

/// `value` with every text in it broken up.
fn break_up(value: &Value, control: &ControlTokens) -> Value {
    match value {
        Value::String(text) => json!(control.break_up(text)),
        Value::Array(items) => items.iter().map(|item| break_up(item, control)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, field)| {
                (control.break_up(name).into_owned(), break_up(field, control))
            });
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}
