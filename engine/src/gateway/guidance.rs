//! What a request makes of its answer's form: which constraint holds, and whether the model may think first.

use serde_json::Value;

use super::request::{GenerateRequest, ToolChoice, ToolUse};
use crate::error::{Code, Error, Result};
use crate::grammar::{Calls, Constraint, Part, Reasoning, ReasoningStart};
use crate::output::{AnswerFormat, Tool, ToolFormat};
use crate::tokenizer::{Spelling, Tokenizer};

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
/// `Unsupported` when calls must be made and the model writes them in a form that is not constrained here, or
/// when calls may be made beside a constraint that is no JSON. `InvalidRequest` when the tool to call is none
/// of those given.
pub(super) fn structure(
    request: &GenerateRequest,
    format: &AnswerFormat,
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
        let constraint = Constraint::Calls(calls(&called, several, format.tools)?);
        return Ok(Some(Structure { constraint, param: "tool_choice".to_owned() }));
    }
    match &request.structure {
        Some(structure) if !called.is_empty() => {
            let calls = calls(&called, *parallel, format.tools)?;
            let constraint = beside_calls(structure, calls)?;
            Ok(Some(Structure { constraint, param: structure.param.clone() }))
        }
        structure => Ok(structure.clone()),
    }
}

/// How the answer of `request`, whose prompt is `tokens`, may begin with reasoning.
pub(super) fn reasoning(
    request: &GenerateRequest,
    format: &AnswerFormat,
    tokens: &[u32],
    tokenizer: &Tokenizer,
) -> Option<Reasoning> {
    let (opening, end) = format.reasoning?.markers();
    let start = match (ends_in(tokens, opening, tokenizer), request.reasoning.enabled) {
        (true, _) => ReasoningStart::Opened,
        (false, Some(false)) => return None,
        (false, _) => ReasoningStart::MayOpen(opening.to_owned()),
    };
    Some(Reasoning { start, end: end.to_owned() })
}

/// Whether the last thing that `tokens` say, white space aside, is `marker`: the template opened it.
fn ends_in(tokens: &[u32], marker: &str, tokenizer: &Tokenizer) -> bool {
    // No token is shorter than a byte, and templates add a line break or two.
    let first = tokens.len().saturating_sub(marker.len() + 8);
    let mut text = Vec::new();
    for token in &tokens[first..] {
        match tokenizer.spelling(*token) {
            Ok(Some(Spelling::Text(bytes))) => text.extend(bytes),
            Ok(Some(Spelling::Marker(name))) => text.extend(name.into_bytes()),
            Ok(None) | Err(_) => {}
        }
    }
    text.trim_ascii_end().ends_with(marker.as_bytes())
}

fn named<'a>(tools: &'a [Tool], name: &str) -> Result<&'a Tool> {
    tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
        let message = format!("`tool_choice` names `{name}`, which is none of `tools`");
        Error::invalid("tool_choice", message)
    })
}

/// The answer of `structure`, or `calls`.
fn beside_calls(structure: &Structure, calls: Calls) -> Result<Constraint> {
    let json = match &structure.constraint {
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
    let (schema, strict) = json;
    Ok(Constraint::Calls(Calls { instead: Some(Part::Json { schema, strict }), ..calls }))
}

/// Calls of `tools` in the markup `format`; `several` says whether one answer may make more than one.
fn calls(tools: &[&Tool], several: bool, format: Option<ToolFormat>) -> Result<Calls> {
    let Some(format) = format else {
        let message = "`tool_choice` asks for a call, and the model has no form of its own for one";
        return Err(Error::new(Code::Unsupported, message).with_param("tool_choice"));
    };
    let markup = markup(format).ok_or_else(|| {
        let message = format!("calls in the model's form ({format:?}) cannot be constrained");
        Error::new(Code::Unsupported, message)
            .with_param("tool_choice")
            .with_hint("`tool_choice` may be `auto` or `none`")
    })?;
    let Markup { open, ways, between, close } = markup;
    let ways = tools.iter().flat_map(|tool| ways.iter().map(|way| way(tool))).collect();
    Ok(Calls { open, ways, between: between.filter(|_| several), close, instead: None })
}

/// How a format writes calls.
struct Markup {
    open: Vec<Part>,
    /// The ways in which a call of a tool may be written; the parsers read them all.
    ways: &'static [fn(&Tool) -> Vec<Part>],
    /// `None` where an answer has one call.
    between: Option<Vec<Part>>,
    close: Vec<Part>,
}

/// The markup of a format whose arguments are JSON; `None` for the others.
fn markup(format: ToolFormat) -> Option<Markup> {
    Some(match format {
        ToolFormat::Json => Markup {
            open: Vec::new(),
            ways: &[|tool| {
                let call = object(tool, "arguments");
                around(
                    &[marker("<tool_call>"), text("\n")],
                    call,
                    &[text("\n"), marker("</tool_call>")],
                )
            }],
            between: Some(vec![text("\n")]),
            close: Vec::new(),
        },
        _ => return None,
    })
}

/// `{"name": "NAME", "ARGUMENTS": {...}}`.
fn object(tool: &Tool, arguments: &str) -> Vec<Part> {
    let name = Value::from(tool.name.as_str());
    around(
        &[text(&format!("{{\"name\": {name}, \"{arguments}\": "))],
        vec![schema(tool)],
        &[text("}")],
    )
}

/// The arguments. What a tool's schema asks beyond what can be enforced is between the client and the model.
fn schema(tool: &Tool) -> Part {
    let mut schema = tool.parameters.clone().unwrap_or_default();
    schema.entry("type").or_insert("object".into());
    Part::Json { schema: Value::Object(schema).to_string(), strict: false }
}

fn around(before: &[Part], middle: Vec<Part>, after: &[Part]) -> Vec<Part> {
    before.iter().cloned().chain(middle).chain(after.iter().cloned()).collect()
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn marker(name: &str) -> Part {
    Part::Marker(name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gateway::request::Prompt;
    use crate::gateway::script;
    use crate::output::ReasoningFormat;

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
        match structure(request, &TALKS).unwrap().unwrap().constraint {
            Constraint::Calls(calls) => calls,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_refused(request: &GenerateRequest, format: &AnswerFormat, code: Code, param: &str) {
        let error = structure(request, format).unwrap_err();
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
            assert_eq!(structure(&request(choice, &["f"]), &TALKS).unwrap(), None);
        }
        let plain = GenerateRequest { structure: object(), ..request(ToolChoice::None, &["f"]) };
        assert_eq!(structure(&plain, &AnswerFormat::default()).unwrap(), object());
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
    }

    #[test]
    fn reasoning_comes_first_where_the_template_or_the_model_opens_it() {
        let tokenizer = script::tokenizer();
        let starts = |prompt: &str, enabled| {
            let tokens = tokenizer.encode(prompt, false).unwrap();
            let mut request = request(ToolChoice::Auto, &[]);
            request.reasoning.enabled = enabled;
            reasoning(&request, &TALKS, &tokens, &tokenizer).map(|reasoning| reasoning.start)
        };
        let may_open = Some(ReasoningStart::MayOpen("<think>".to_owned()));
        assert_eq!(starts("<|im_start|>assistant\n<think>\n", None), Some(ReasoningStart::Opened));
        assert_eq!(starts("<think>", Some(false)), Some(ReasoningStart::Opened));
        assert_eq!(starts("<think>\n\n</think>\n\n", None), may_open);
        assert_eq!(starts("<|im_start|>assistant\n", Some(true)), may_open);
        assert_eq!(starts("<|im_start|>assistant\n", Some(false)), None);
        assert_eq!(starts("", None), may_open);
        let silent = AnswerFormat::default();
        assert_eq!(reasoning(&request(ToolChoice::Auto, &[]), &silent, &[1], &tokenizer), None);
    }
}
