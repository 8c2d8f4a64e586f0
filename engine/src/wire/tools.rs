//! Tools, as the newer dialects list them: flat, each by its name.

use crate::error::{Error, Result};
use crate::gateway::ToolChoice;
use crate::limits;
use crate::output::Tool;
use crate::wire::fields::shortened;
use crate::wire::{Fields, openai};

/// The tool that `fields` describe, with the JSON schema of its arguments in the field `schema`.
pub(super) fn tool(fields: &Fields<'_>, schema: &str) -> Result<Tool> {
    fields.boolean("strict")?;
    Ok(Tool {
        name: openai::tool_name(fields)?,
        description: fields.text("description")?.map(str::to_owned),
        parameters: fields.nested(schema)?.map(|schema| schema.object().clone()),
    })
}

/// Adds `tool`, which `fields` describe, to `tools`, of which no other has its name.
pub(super) fn add(tools: &mut Vec<Tool>, tool: Tool, fields: &Fields<'_>) -> Result<()> {
    let most = limits::TOOLS_MAX;
    if tools.len() >= most {
        return Err(Error::invalid("tools", format!("`tools` holds more than {most} tools")));
    }
    if tools.iter().any(|other| other.name == tool.name) {
        let (path, name) = (fields.path_of("name"), shortened(&tool.name));
        let message = format!("`{path}` is `{name}`, as that of another tool");
        return Err(Error::invalid(path, message));
    }
    tools.push(tool);
    Ok(())
}

/// The choice that some tool must be called.
pub(super) fn required(tools: &[Tool]) -> Result<ToolChoice> {
    match tools {
        [] => {
            Err(Error::invalid("tool_choice", "`tool_choice` asks for a tool, and there are none"))
        }
        _ => Ok(ToolChoice::Required),
    }
}

/// The choice of the tool that the field `name` of `choice` names.
pub(super) fn named(tools: &[Tool], choice: &Fields<'_>) -> Result<ToolChoice> {
    choice.required("name")?;
    let name = choice.text("name")?.unwrap_or_default();
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    let (path, name) = (choice.path_of("name"), shortened(name));
    Err(Error::invalid(&path, format!("`{path}` is `{name}`, and no tool is called so")))
}
