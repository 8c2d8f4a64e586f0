//! Tools, and whether to call them.
//!
//! Every dialect lists tools by names of their own, each with a JSON schema of its arguments. They differ in
//! the types that an entry may be of, in where its description stands, and in how a choice is spelled.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::Fields;
use super::fields::{mismatch, shortened};
use crate::error::{Error, Result};
use crate::gateway::ToolChoice;
use crate::limits;
use crate::output::Tool;

/// The field of a choice.
const CHOICE: &str = "tool_choice";

/// Where one tool is described.
pub(super) struct Described<'a> {
    /// The object with its `name` and its `description`.
    pub(super) fields: Fields<'a>,
    /// The field of that object with the JSON schema of its arguments.
    pub(super) schema: &'static str,
}

/// Reads `tools`. `described` finds the description in an entry, or leaves the entry out.
///
/// # Errors
/// `InvalidRequest` when there are too many, two of one name, or one that is malformed; and those of
/// `described`.
pub(super) fn tools<'a>(
    fields: &Fields<'a>,
    mut described: impl FnMut(Fields<'a>) -> Result<Option<Described<'a>>>,
) -> Result<Arc<[Tool]>> {
    let entries = fields.array("tools")?.unwrap_or_default();
    let most = limits::TOOLS_MAX;
    if entries.len() > most {
        let message = format!("`tools` holds {} tools, and {most} are allowed", entries.len());
        return Err(Error::invalid("tools", message));
    }
    let mut names = HashSet::new();
    let mut tools = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let entry = Fields::at(format!("tools[{index}]"), entry)?;
        let Some(Described { fields, schema }) = described(entry)? else { continue };
        let tool = tool(&fields, schema)?;
        if !names.insert(tool.name.clone()) {
            let (path, name) = (fields.path_of("name"), &tool.name);
            let message = format!("`{path}`: there is another tool of the name `{name}`");
            return Err(Error::invalid(path, message));
        }
        tools.push(tool);
    }
    Ok(tools.into())
}

fn tool(fields: &Fields<'_>, schema: &str) -> Result<Tool> {
    fields.boolean("strict")?;
    Ok(Tool {
        name: name(fields)?,
        description: fields.text("description")?.map(str::to_owned),
        parameters: fields.nested(schema)?.map(|schema| schema.object().clone()),
    })
}

/// Names go into markup of every kind, so they hold no spaces, brackets and quotes.
fn name(fields: &Fields<'_>) -> Result<String> {
    let name = fields.required_text("name")?;
    let fits =
        |next: char| !next.is_whitespace() && !next.is_control() && !"<>{}()[]\"',`".contains(next);
    let most = limits::TOOL_NAME_BYTES_MAX;
    if name.is_empty() || name.len() > most || !name.chars().all(fits) {
        let expected = format!("1 to {most} letters, digits and signs like `_` and `-`");
        return Err(fields.unexpected("name", &expected));
    }
    Ok(name.to_owned())
}

/// OpenAI's `tool_choice`: a word, or an object in which `named` finds the name of a function.
///
/// # Errors
/// `InvalidRequest` when it is neither or asks for what is not among `tools`, `Unsupported` when it is of
/// another type than a function.
pub(super) fn choice<'a>(
    fields: &Fields<'a>,
    tools: &[Tool],
    named_in: impl Fn(Fields<'a>) -> Result<Fields<'a>>,
) -> Result<ToolChoice> {
    const EXPECTED: &str = "`none`, `auto`, `required` or an object that names a function";
    match fields.get(CHOICE) {
        None => Ok(ToolChoice::Auto),
        Some(value @ Value::String(word)) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => required(tools),
            _ => Err(mismatch(CHOICE, EXPECTED, value)),
        },
        Some(value @ Value::Object(_)) => {
            let choice = Fields::at(CHOICE, value)?;
            match choice.required_text("type")? {
                "function" => named(tools, &named_in(choice)?),
                kind => Err(choice.unsupported_kind("type", "choices", kind)),
            }
        }
        Some(other) => Err(mismatch(CHOICE, EXPECTED, other)),
    }
}

/// The choice that some tool must be called.
///
/// # Errors
/// `InvalidRequest` when there is none.
pub(super) fn required(tools: &[Tool]) -> Result<ToolChoice> {
    if tools.is_empty() {
        let message = "`tool_choice` asks for a call, but `tools` holds no tools";
        return Err(Error::invalid(CHOICE, message));
    }
    Ok(ToolChoice::Required)
}

/// The choice of the tool that the field `name` of `fields` names.
///
/// # Errors
/// `InvalidRequest` when no tool is called so.
pub(super) fn named(tools: &[Tool], fields: &Fields<'_>) -> Result<ToolChoice> {
    let name = fields.required_text("name")?;
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    let (path, name) = (fields.path_of("name"), shortened(name));
    let message = format!("`{path}` is `{name}`, and `tools` has no tool of this name");
    Err(Error::invalid(path, message))
}
