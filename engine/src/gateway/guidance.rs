//! What a request makes of its answer's form: which constraint holds, and whether the model may think first.

use super::markup;
use super::request::{GenerateRequest, ToolChoice, ToolUse};
use crate::error::{Code, Error, Result};
use crate::grammar::{Calls, Constraint, Part, Reasoning, ReasoningStart};
use crate::output::{AnswerFormat, Beginning, MessageFormat, ReasoningFormat, Tool, ToolFormat};
use crate::tokenizer::Tokenizer;

/// What the answer must look like, and the request field that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    /// What the answer must be.
    pub constraint: Constraint,
    /// The field.
    pub param: String,
}

/// The constraint of `request` to a model that writes `format`, if there is one.
///
/// # Errors
/// `Unsupported` when calls must be made and the model has no form for them or for what they must hold, or
/// when calls may be made beside a constraint that is no JSON. `InvalidRequest` when the tool to call is none
/// of those given.
pub(super) fn structure(
    request: &GenerateRequest,
    format: &AnswerFormat,
    tokenizer: &Tokenizer,
) -> Result<Option<Structure>> {
    let ToolUse { tools, choice, parallel } = &request.tools;
    let called: Vec<&Tool> = match choice {
        ToolChoice::Named(name) => vec![named(tools, name)?],
        ToolChoice::Auto | ToolChoice::Required => tools.iter().collect(),
        ToolChoice::None => Vec::new(),
    };
    let must_call = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
    if must_call {
        if called.is_empty() {
            let message = "`tool_choice` asks for a call, and there are no `tools`";
            return Err(Error::invalid("tool_choice", message));
        }
        let several = *parallel && *choice == ToolChoice::Required;
        let calls = calls(&called, several, None, format.tools, tokenizer)?;
        let constraint = Constraint::Calls(calls);
        return Ok(Some(Structure { constraint, param: "tool_choice".to_owned() }));
    }
    match &request.structure {
        Some(structure) if !called.is_empty() => {
            let instead = Some(json_of(structure)?);
            let calls = calls(&called, *parallel, instead, format.tools, tokenizer)?;
            let constraint = Constraint::Calls(calls);
            Ok(Some(Structure { constraint, param: structure.param.clone() }))
        }
        structure => Ok(structure.clone()),
    }
}

/// How the answer of `request`, which starts at `beginning` and must match `constraint`, may begin with
/// reasoning.
///
/// # Errors
/// `Unsupported` when the model's answers fall into messages and the constraint is not to be had in them.
pub(super) fn reasoning(
    request: &GenerateRequest,
    format: &AnswerFormat,
    constraint: &Constraint,
    beginning: Beginning,
) -> Result<Option<Reasoning>> {
    if let Some(messages) = format.messages {
        return in_messages(messages, constraint, beginning);
    }
    let Some(markers) = format.reasoning.map(ReasoningFormat::markers) else {
        return Ok(None);
    };
    let (opening, end) = markers;
    let start = match (beginning, request.reasoning.enabled) {
        (Beginning::Reasoning, _) => ReasoningStart::Opened,
        (_, Some(false)) => return Ok(None),
        _ => ReasoningStart::MayOpen(opening.to_owned()),
    };
    Ok(Some(Reasoning { start, end: end.to_owned() }))
}

/// The same where answers fall into messages: the grammar of calls is that of all messages, and another one
/// that of the last message's text.
fn in_messages(
    messages: MessageFormat,
    constraint: &Constraint,
    beginning: Beginning,
) -> Result<Option<Reasoning>> {
    let refused = |message: &str| Err(Error::new(Code::Unsupported, message));
    let calls = matches!(constraint, Constraint::Calls(_));
    let end = match (messages, calls, beginning) {
        (_, true, Beginning::Head) => return Ok(None),
        (_, true, Beginning::Text) => {
            return refused("the prompt began the answer's last message, so no call can follow");
        }
        // The prompt began a thought, and other messages come behind it.
        (MessageFormat::Harmony, true, Beginning::Reasoning) => "<|end|><|start|>assistant",
        (MessageFormat::MuseSpark, true, Beginning::Reasoning) => "<|eom|><|start|>assistant",
        // All channels but this one come before the answer.
        (MessageFormat::Harmony, false, _) => "<|channel|>final<|message|>",
        (MessageFormat::MuseSpark, false, _) => {
            return refused(
                "the answers of this model fall into messages, which cannot be constrained",
            );
        }
    };
    Ok(Some(Reasoning { start: ReasoningStart::Opened, end: end.to_owned() }))
}

fn named<'a>(tools: &'a [Tool], name: &str) -> Result<&'a Tool> {
    tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
        let message = format!("`tool_choice` names `{name}`, which is none of `tools`");
        Error::invalid("tool_choice", message)
    })
}

/// The JSON that `structure` asks for.
fn json_of(structure: &Structure) -> Result<Part> {
    let (schema, strict) = match &structure.constraint {
        Constraint::JsonObject => (r#"{"type":"object"}"#.to_owned(), true),
        Constraint::JsonSchema { schema, strict } => (schema.clone(), *strict),
        Constraint::Regex(_)
        | Constraint::Grammar(_)
        | Constraint::Choice(_)
        | Constraint::Calls(_) => {
            let message = format!("`{}` beside `tools` is not supported", structure.param);
            return Err(Error::new(Code::Unsupported, message)
                .with_param(structure.param.clone())
                .with_hint("leave out `tools`, or set `tool_choice` to `none`"));
        }
    };
    Ok(Part::Json { schema, strict })
}

/// Calls of `tools` in the markup `format`, or what may come `instead`; `several` says whether one answer may
/// make more than one.
fn calls(
    tools: &[&Tool],
    several: bool,
    instead: Option<Part>,
    format: Option<ToolFormat>,
    tokenizer: &Tokenizer,
) -> Result<Calls> {
    let Some(format) = format else {
        let message = "`tool_choice` asks for a call, and the model has no form of its own for one";
        return Err(Error::new(Code::Unsupported, message).with_param("tool_choice"));
    };
    markup::calls(format, tools, several, instead, tokenizer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gateway::request::Prompt;
    use crate::gateway::script;

    const TALKS: AnswerFormat = AnswerFormat {
        reasoning: Some(ReasoningFormat::Think),
        tools: Some(ToolFormat::Json),
        messages: None,
    };

    fn tool(name: &str) -> Tool {
        let parameters = json!({"properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let parameters = parameters.as_object().cloned();
        Tool { name: name.to_owned(), description: None, parameters }
    }

    fn request(choice: ToolChoice, tools: &[&str]) -> GenerateRequest {
        let tools = tools.iter().map(|name| tool(name)).collect();
        GenerateRequest {
            tools: ToolUse { tools, choice, parallel: true },
            ..GenerateRequest::new("r", Prompt::Tokens(vec![1]))
        }
    }

    fn object() -> Option<Structure> {
        let (constraint, param) = (Constraint::JsonObject, "response_format".to_owned());
        Some(Structure { constraint, param })
    }

    #[track_caller]
    fn calls_of(request: &GenerateRequest) -> Calls {
        match structure(request, &TALKS, &script::tokenizer()).unwrap().unwrap().constraint {
            Constraint::Calls(calls) => calls,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_refused(request: &GenerateRequest, format: &AnswerFormat, code: Code, param: &str) {
        let error = structure(request, format, &script::tokenizer()).unwrap_err();
        assert_eq!((error.code(), error.param()), (code, Some(param)), "{error}");
    }

    #[test]
    fn a_call_is_constrained_when_it_must_be_made() {
        let required = calls_of(&request(ToolChoice::Required, &["f", "g"]));
        assert_eq!((required.ways.len(), required.between.is_some()), (2, true));
        assert_eq!(required.instead, None);
        let named = calls_of(&request(ToolChoice::Named("g".to_owned()), &["f", "g"]));
        assert_eq!((named.ways.len(), named.between.is_some()), (1, false));
        assert!(format!("{:?}", named.ways).contains("\\\"g\\\""), "{named:?}");
        let mut single = request(ToolChoice::Required, &["f"]);
        single.tools.parallel = false;
        assert_eq!(calls_of(&single).between, None);
    }

    #[test]
    fn nothing_is_constrained_where_nothing_is_asked() {
        for choice in [ToolChoice::None, ToolChoice::Auto] {
            let free = request(choice, &["f"]);
            assert_eq!(structure(&free, &TALKS, &script::tokenizer()).unwrap(), None);
        }
        let plain = GenerateRequest { structure: object(), ..request(ToolChoice::None, &["f"]) };
        let mute = AnswerFormat::default();
        assert_eq!(structure(&plain, &mute, &script::tokenizer()).unwrap(), object());
    }

    #[test]
    fn json_beside_tools_may_be_an_answer_or_a_call() {
        let both = GenerateRequest { structure: object(), ..request(ToolChoice::Auto, &["f"]) };
        assert!(calls_of(&both).instead.is_some());
        let constraint = Constraint::Regex("a".to_owned());
        let param = "guided_regex".to_owned();
        let regex = GenerateRequest { structure: Some(Structure { constraint, param }), ..both };
        check_refused(&regex, &TALKS, Code::Unsupported, "guided_regex");
    }

    #[test]
    fn a_call_that_cannot_be_had_is_refused() {
        let (mute, choice) = (AnswerFormat::default(), "tool_choice");
        let required = request(ToolChoice::Required, &["f"]);
        check_refused(&required, &mute, Code::Unsupported, choice);
        let unknown = request(ToolChoice::Named("h".to_owned()), &["f"]);
        check_refused(&unknown, &TALKS, Code::InvalidRequest, choice);
        check_refused(&request(ToolChoice::Required, &[]), &TALKS, Code::InvalidRequest, choice);
        let parameters = json!({"properties": {"two words": {}}, "required": ["two words"]});
        let parameters = parameters.as_object().cloned();
        let odd = Tool { name: "f".to_owned(), description: None, parameters };
        let mut odd_required = required.clone();
        odd_required.tools.tools = [odd].into();
        let python = AnswerFormat { tools: Some(ToolFormat::Pythonic), ..TALKS };
        check_refused(&odd_required, &python, Code::Unsupported, choice);
        assert!(structure(&required, &python, &script::tokenizer()).is_ok());
    }

    #[test]
    fn reasoning_comes_first_where_the_template_or_the_model_opens_it() {
        let tokenizer = script::tokenizer();
        let starts = |prompt: &str, enabled| {
            let tokens = tokenizer.encode(prompt, false).unwrap();
            let mut request = request(ToolChoice::Auto, &[]);
            request.reasoning.enabled = enabled;
            let beginning = TALKS.beginning(&tokenizer.decode_spelled(&tokens).unwrap());
            reasoning(&request, &TALKS, &Constraint::JsonObject, beginning)
                .unwrap()
                .map(|reasoning| reasoning.start)
        };
        let may_open = Some(ReasoningStart::MayOpen("<think>".to_owned()));
        assert_eq!(starts("<|im_start|>assistant\n<think>\n", None), Some(ReasoningStart::Opened));
        assert_eq!(starts("<think>", Some(false)), Some(ReasoningStart::Opened));
        assert_eq!(starts("<think>\n\n</think>\n\n", None), may_open);
        assert_eq!(starts("<|im_start|>assistant\n", Some(true)), may_open);
        assert_eq!(starts("<|im_start|>assistant\n", Some(false)), None);
        assert_eq!(starts("", None), may_open);
    }

    #[test]
    fn models_without_reasoning_answer_at_once_and_gpt_oss_in_its_last_channel() {
        let request = request(ToolChoice::Auto, &[]);
        let of = |format: AnswerFormat| {
            reasoning(&request, &format, &Constraint::JsonObject, Beginning::Text)
        };
        assert_eq!(of(AnswerFormat::default()).unwrap(), None);
        let messages =
            |messages| AnswerFormat { messages: Some(messages), ..AnswerFormat::default() };
        let harmony = of(messages(MessageFormat::Harmony)).unwrap().unwrap();
        assert_eq!(
            (harmony.start, harmony.end.as_str()),
            (ReasoningStart::Opened, "<|channel|>final<|message|>")
        );
        assert_eq!(of(messages(MessageFormat::MuseSpark)).unwrap_err().code(), Code::Unsupported);
    }

    #[test]
    fn calls_that_are_messages_come_behind_the_thought_that_the_prompt_began() {
        let request = request(ToolChoice::Required, &["f"]);
        let calls = Constraint::Calls(Calls::default());
        for (messages, end) in [
            (MessageFormat::Harmony, "<|end|><|start|>assistant"),
            (MessageFormat::MuseSpark, "<|eom|><|start|>assistant"),
        ] {
            let format = AnswerFormat { messages: Some(messages), ..AnswerFormat::default() };
            let of = |beginning| reasoning(&request, &format, &calls, beginning);
            assert_eq!(of(Beginning::Head).unwrap(), None);
            assert_eq!(of(Beginning::Reasoning).unwrap().unwrap().end, end);
            assert_eq!(of(Beginning::Text).unwrap_err().code(), Code::Unsupported);
        }
    }
}
