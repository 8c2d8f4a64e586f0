//! Tools of a chat, whether to call them, and how to think.

use std::collections::HashSet;

use serde_json::Value;

use super::request::unsupported;
use crate::error::{Error, Result};
use crate::gateway::{Reasoning, ReasoningEffort, ToolChoice, ToolUse};
use crate::limits;
use crate::output::Tool;
use crate::wire::Fields;
use crate::wire::fields::mismatch;

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn tool_use(fields: &Fields<'_>) -> Result<ToolUse> {
    let tools = tools(fields)?;
    let choice = choice(fields, &tools)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(ToolUse { tools: tools.into(), choice, parallel })
}

fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>> {
    let values = fields.array("tools")?.unwrap_or_default();
    let most = limits::TOOLS_MAX;
    if values.len() > most {
        let message = format!("`tools` holds {} tools, and {most} are allowed", values.len());
        return Err(Error::invalid("tools", message));
    }
    let mut names = HashSet::new();
    let mut tools = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = tool(&path, value)?;
        if !names.insert(tool.name.clone()) {
            let path = format!("{path}.function.name");
            let message = format!("`{path}`: there is another tool of the name `{}`", tool.name);
            return Err(Error::invalid(&path, message));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(path: &str, value: &Value) -> Result<Tool> {
    let fields = Fields::at(path, value)?;
    fields.required("type")?;
    if let Some(kind) = fields.text("type")?.filter(|kind| *kind != "function") {
        let path = fields.path_of("type");
        let message = format!("`{path}`: tools of the type `{kind}` are not supported");
        return Err(unsupported(&path, message));
    }
    let function = Fields::at(fields.path_of("function"), fields.required("function")?)?;
    Ok(Tool {
        name: name(&function)?,
        description: function.text("description")?.map(str::to_owned),
        parameters: function.nested("parameters")?.map(|schema| schema.object().clone()),
    })
}

/// The `name` of a function. Names go into markup of every kind, so they hold no spaces, brackets and
/// quotes.
pub(in crate::wire) fn name(function: &Fields<'_>) -> Result<String> {
    let value = function.required("name")?;
    let name = function.text("name")?.unwrap_or_default();
    let fits =
        |next: char| !next.is_whitespace() && !next.is_control() && !"<>{}()[]\"',`".contains(next);
    if name.is_empty() || name.len() > limits::TOOL_NAME_BYTES_MAX || !name.chars().all(fits) {
        let most = limits::TOOL_NAME_BYTES_MAX;
        let expected = format!("1 to {most} letters, digits and signs like `_` and `-`");
        return Err(mismatch(&function.path_of("name"), &expected, value));
    }
    Ok(name.to_owned())
}

fn choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice> {
    const FIELD: &str = "tool_choice";
    let Some(value) = fields.get(FIELD) else {
        return Ok(ToolChoice::Auto);
    };
    let choice = match value {
        Value::String(word) => match word.as_str() {
            "none" => return Ok(ToolChoice::None),
            "auto" => return Ok(ToolChoice::Auto),
            "required" => ToolChoice::Required,
            _ => {
                let expected = "`none`, `auto`, `required` or an object that names a tool";
                return Err(mismatch(FIELD, expected, value));
            }
        },
        Value::Object(_) => named(&Fields::at(FIELD, value)?, tools)?,
        other => return Err(mismatch(FIELD, "a string or an object", other)),
    };
    if tools.is_empty() {
        let message = "`tool_choice` asks for a call, but `tools` holds no tools";
        return Err(Error::invalid(FIELD, message));
    }
    Ok(choice)
}

fn named(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice> {
    fields.required("type")?;
    if let Some(kind) = fields.text("type")?.filter(|kind| *kind != "function") {
        let path = fields.path_of("type");
        let message = format!("`{path}`: a choice of the type `{kind}` is not supported");
        return Err(unsupported(&path, message));
    }
    let function = Fields::at(fields.path_of("function"), fields.required("function")?)?;
    function.required("name")?;
    let name = function.text("name")?.unwrap_or_default();
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    let path = function.path_of("name");
    let message = format!("`{path}` is `{name}`, and `tools` has no tool of this name");
    Err(Error::invalid(&path, message))
}

/// Reads `reasoning_effort`, and `enable_thinking` where it stands outside of `chat_template_kwargs`.
pub(super) fn reasoning(fields: &Fields<'_>) -> Result<Reasoning> {
    const FIELD: &str = "reasoning_effort";
    let effort = match fields.text(FIELD)? {
        None => None,
        Some("none") => return Ok(Reasoning { enabled: Some(false), effort: None }),
        Some("minimal") => Some(ReasoningEffort::Minimal),
        Some("low") => Some(ReasoningEffort::Low),
        Some("medium") => Some(ReasoningEffort::Medium),
        Some("high") => Some(ReasoningEffort::High),
        Some("xhigh") => Some(ReasoningEffort::ExtraHigh),
        Some(_) => {
            let expected = "one of `none`, `minimal`, `low`, `medium`, `high`, `xhigh`";
            return Err(mismatch(FIELD, expected, &fields.object()[FIELD]));
        }
    };
    let asked = fields.boolean("enable_thinking")?;
    Ok(Reasoning { enabled: asked.or(effort.map(|_| true)), effort })
}
