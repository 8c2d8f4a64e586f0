//! Calls in the markup of each format, with holes for what the model fills in.
//!
//! The markup is what the family's template writes; the parsers of `output` read it back. Formats with JSON
//! arguments are held to the tool's schema. In formats with one tag per argument ([`tags`]), values that may be
//! text are any text, fixed choices are one of them, and all others are JSON of their schema. Formats with a
//! notation of their own ([`values`]) write each value as the schema types it.
//!
//! Lexemes match as far as they can, so none may begin with all of another that may come in its place: a line
//! break before a call is not told from one before what closes the block unless both are parts of their own.
//!
//! Where calls are messages, the grammar is that of the whole answer: thoughts may come first, in messages of
//! their own.

mod tags;
mod values;

use serde_json::{Map, Value};

use self::tags::unwritable;
use self::values::{Notation, Property, Values, properties};
use crate::error::Result;
use crate::grammar::{Calls, Part};
use crate::output::{Tool, ToolFormat};
use crate::tokenizer::{ChatTemplate, Tokenizer};

/// Calls of `tools` in the markup of `format`, more than one if `several`; or, if there is one, `instead`: the
/// parts of an answer that is no call.
///
/// # Errors
/// `Unsupported` naming what a call must hold and the format cannot write.
pub(super) fn calls(
    format: ToolFormat,
    tools: &[&Tool],
    several: bool,
    instead: Option<Part>,
    tokenizer: &Tokenizer,
) -> Result<Calls> {
    let Markup { lead, answer, open, ways, between, close } = markup(format, tokenizer);
    let ways = tools.iter().flat_map(|tool| ways.iter().map(|way| way(tool)));
    Ok(Calls {
        ways: ways.collect::<Result<_>>()?,
        between: between.filter(|_| several),
        instead: instead.map(|part| [answer, vec![part]].concat()),
        lead,
        open,
        close,
    })
}

/// Writes a call of a tool.
type Way = fn(&Tool) -> Result<Vec<Part>>;

/// How a format writes calls.
#[derive(Default)]
struct Markup {
    /// What may come before everything, again and again.
    lead: Vec<Part>,
    /// What comes before an answer that is no call.
    answer: Vec<Part>,
    open: Vec<Part>,
    /// The ways in which a call of a tool may be written.
    ways: &'static [Way],
    /// `None` where an answer has one call.
    between: Option<Vec<Part>>,
    close: Vec<Part>,
}

impl Markup {
    /// Calls that stand by themselves, one after the other.
    fn single(ways: &'static [Way], between: &str) -> Self {
        let between = if between.is_empty() { Vec::new() } else { vec![text(between)] };
        Self { ways, between: Some(between), ..Self::default() }
    }

    /// Calls between two markers.
    fn section(open: &str, ways: &'static [Way], between: &str, close: &str) -> Self {
        let mut close_parts = vec![marker(close)];
        close_parts.retain(|_| !close.is_empty());
        Self { open: vec![marker(open)], close: close_parts, ..Self::single(ways, between) }
    }

    /// A list of calls between two markers.
    fn list(open: &str, ways: &'static [Way], close: &str) -> Self {
        let mut markup = Self::section(open, ways, ", ", close);
        markup.open.retain(|_| !open.is_empty());
        markup.open.push(text("["));
        markup.close.insert(0, text("]"));
        markup
    }
}

fn markup(format: ToolFormat, tokenizer: &Tokenizer) -> Markup {
    use ToolFormat::*;
    match format {
        Json => Markup::single(&[tagged_object], "\n"),
        Llama3 => Markup { between: None, ..Markup::single(&[|it| object(it, "parameters")], "") },
        Mistral if tokenizer.token_id("[ARGS]").is_some() => Markup::single(&[mistral], ""),
        Mistral => Markup::list("[TOOL_CALLS]", ARGUMENTS, ""),
        JsonList => Markup::list("<tool_calls>", ARGUMENTS, "</tool_calls>"),
        Nemotron => Markup::list("<TOOLCALL>", ARGUMENTS, "</TOOLCALL>"),
        Granite => Markup::list("<|tool_call|>", ARGUMENTS, ""),
        Cohere => Markup::list("<|START_ACTION|>", &[cohere], "<|END_ACTION|>"),
        DeepSeek => Markup::section(
            "<｜tool▁calls▁begin｜>",
            &[deepseek, deepseek_fenced],
            "",
            "<｜tool▁calls▁end｜>",
        ),
        KimiK2 => Markup::section(
            "<|tool_calls_section_begin|>",
            &[kimi],
            "",
            "<|tool_calls_section_end|>",
        ),
        QwenXml => Markup::single(&[|it| tags::qwen(it, "<tool_call>", "</tool_call>")], "\n"),
        SeedXml => {
            Markup::single(&[|it| tags::qwen(it, "<seed:tool_call>", "</seed:tool_call>")], "\n")
        }
        Glm => Markup::single(&[|it| tags::glm(it, "")], "\n"),
        Longcat => Markup::single(&[|it| tags::glm(it, "longcat_")], "\n"),
        MiniCpm5 => Markup::single(&[tags::minicpm], "\n"),
        MiniMax => {
            let way: &[Way] = &[|it| tags::invoke(it, "")];
            on_lines(Markup::section("<minimax:tool_call>", way, "", "</minimax:tool_call>"))
        }
        MuseSpark => muse(),
        DeepSeekMarkup => deepseek_markup(tokenizer),
        KimiK3 => kimi_tools(),
        Gemma4 => Markup::single(&[gemma4], ""),
        FunctionGemma => Markup::single(&[function_gemma], ""),
        Harmony => harmony(),
        Pythonic => Markup::list("<|tool_call_start|>", &[python], "<|tool_call_end|>"),
        PythonicList => Markup::list("", &[python], ""),
        PythonicLines => {
            on_lines(Markup::section("<function_calls>", &[python_line], "", "</function_calls>"))
        }
    }
}

/// The markup with its calls on lines of their own, each of which ends its line.
fn on_lines(mut markup: Markup) -> Markup {
    markup.open.push(text("\n"));
    markup
}

// --- calls that are messages ---

/// gpt-oss: thoughts in the channel `analysis`, then a message to a function. The model waits for its result,
/// so an answer has one call.
fn harmony() -> Markup {
    let channel = |name: &str| vec![marker("<|channel|>"), text(name), marker("<|message|>")];
    let others = ["<|start|>", "<|call|>", "<|return|>"];
    let thought = until(ANY_TEXT, &others, vec![marker("<|end|>")]);
    let next = vec![thought, marker("<|start|>"), text("assistant")];
    Markup {
        lead: [channel("analysis"), next].concat(),
        answer: channel("final"),
        ways: &[harmony_in_channel, harmony_to_function],
        ..Markup::default()
    }
}

/// As the model writes it.
fn harmony_in_channel(tool: &Tool) -> Result<Vec<Part>> {
    Ok(vec![
        marker("<|channel|>"),
        text(&format!("commentary to=functions.{} ", tool.name)),
        marker("<|constrain|>"),
        text("json"),
        marker("<|message|>"),
        arguments_of(tool),
    ])
}

/// As its template prints it.
fn harmony_to_function(tool: &Tool) -> Result<Vec<Part>> {
    let constrain = Part::Either(vec![vec![marker("<|constrain|>")], Vec::new()]);
    Ok(vec![
        text(&format!(" to=functions.{}", tool.name)),
        marker("<|channel|>"),
        text("commentary "),
        constrain,
        text("json"),
        marker("<|message|>"),
        arguments_of(tool),
    ])
}

/// Thoughts in a message to itself, then one with a block of calls, to whatever the model calls the tools.
fn muse() -> Markup {
    let others = ["<|start|>", "<|eot|>", "<atem:function_calls>"];
    let thought = until(ANY_TEXT, &others, vec![marker("<|eom|>")]);
    let next = vec![thought, marker("<|start|>"), text("assistant")];
    let anyone = "[A-Za-z0-9_.-]{1,64}".to_owned();
    let recipient = Part::MatchBut(anyone, "self|user|commentary".to_owned());
    let to = |recipient| vec![text(" to="), recipient, marker("<|message|>")];
    let open = [to(recipient), vec![marker("<atem:function_calls>")]].concat();
    let close = vec![marker("</atem:function_calls>")];
    on_lines(Markup {
        lead: [to(text("self")), next].concat(),
        answer: to(text("user")),
        open,
        close,
        ..Markup::single(&[|it| tags::invoke(it, "atem:")], "")
    })
}

// --- calls with marks inside their tags ---

/// V3.2 and its followers name the block differently.
fn deepseek_markup(tokenizer: &Tokenizer) -> Markup {
    let template = tokenizer.chat_template().map_or("", ChatTemplate::source);
    let later = template.contains("tool_calls>") && !template.contains("function_calls>");
    let block = if later { "tool_calls" } else { "function_calls" };
    let mark = ["｜DSML｜"];
    let open = split(&format!("<｜DSML｜{block}>"), &mark);
    on_lines(Markup {
        open: [vec![Part::Maybe(vec![text("\n\n")])], open].concat(),
        close: split(&format!("</｜DSML｜{block}>"), &mark),
        ..Markup::single(&[tags::deepseek], "")
    })
}

fn kimi_tools() -> Markup {
    let parts = |text: &str| split(text, &["<|open|>", "<|close|>", "<|sep|>"]);
    let nothing_said = parts("<|open|>response<|sep|><|close|>response<|sep|>");
    Markup {
        open: [vec![Part::Maybe(nothing_said)], parts("<|open|>tools<|sep|>")].concat(),
        close: parts("<|close|>tools<|sep|>"),
        ..Markup::single(&[tags::kimi], "")
    }
}

// --- calls in notations of their own ---

fn gemma4(tool: &Tool) -> Result<Vec<Part>> {
    gemma(tool, ["<|tool_call>", "<tool_call|>", "<|\"|>"])
}

fn function_gemma(tool: &Tool) -> Result<Vec<Part>> {
    gemma(tool, ["<start_function_call>", "<end_function_call>", "<escape>"])
}

/// `call:NAME{key:value,...}`.
fn gemma(tool: &Tool, [open, close, quote]: [&'static str; 3]) -> Result<Vec<Part>> {
    let members = members(tool, Notation::Gemma { quote }, ",")?;
    let head = format!("call:{}{{", tool.name);
    Ok(vec![marker(open), text(&head), members, text("}"), marker(close)])
}

/// `NAME(key=value, ...)`.
fn python(tool: &Tool) -> Result<Vec<Part>> {
    let fits = |next: char| next.is_alphanumeric() || matches!(next, '_' | '.' | '-');
    if !tool.name.chars().all(fits) {
        return Err(unwritable(tool, &tool.name));
    }
    let members = members(tool, Notation::Python, ", ")?;
    Ok(vec![text(&format!("{}(", tool.name)), members, text(")")])
}

fn python_line(tool: &Tool) -> Result<Vec<Part>> {
    Ok([python(tool)?, vec![text("\n")]].concat())
}

/// The arguments of `tool`. What is not required may be left out.
fn members(tool: &Tool, notation: Notation, separator: &str) -> Result<Part> {
    let root = tool.parameters.clone().unwrap_or_default();
    let values = Values { notation, root: &root };
    let mut members = Vec::new();
    for Property { name, schema, required } in properties(&root) {
        match values.key(name).zip(values.value(schema)) {
            Some((key, value)) => members.push(([key, value].concat(), required)),
            None if required => return Err(unwritable(tool, name)),
            None => {}
        }
    }
    Ok(Part::Members { separator: separator.to_owned(), members })
}

// --- calls with JSON arguments ---

const ARGUMENTS: &[Way] = &[|tool| object(tool, "arguments")];

/// `{"name": "NAME", "ARGUMENTS": {...}}`.
fn object(tool: &Tool, arguments: &str) -> Result<Vec<Part>> {
    let name = Value::from(tool.name.as_str());
    let head = format!("{{\"name\": {name}, \"{arguments}\": ");
    Ok(vec![text(&head), arguments_of(tool), text("}")])
}

fn tagged_object(tool: &Tool) -> Result<Vec<Part>> {
    let before = vec![marker("<tool_call>"), text("\n")];
    let after = vec![text("\n"), marker("</tool_call>")];
    Ok([before, object(tool, "arguments")?, after].concat())
}

fn mistral(tool: &Tool) -> Result<Vec<Part>> {
    Ok(vec![marker("[TOOL_CALLS]"), text(&tool.name), marker("[ARGS]"), arguments_of(tool)])
}

fn cohere(tool: &Tool) -> Result<Vec<Part>> {
    let name = Value::from(tool.name.as_str());
    Ok(vec![
        text("{\"tool_call_id\": \""),
        Part::Match("[0-9]{1,2}".to_owned()),
        text(&format!("\", \"tool_name\": {name}, \"parameters\": ")),
        arguments_of(tool),
        text("}"),
    ])
}

/// As V3.1 writes it.
fn deepseek(tool: &Tool) -> Result<Vec<Part>> {
    Ok(vec![
        marker("<｜tool▁call▁begin｜>"),
        text(&tool.name),
        marker("<｜tool▁sep｜>"),
        arguments_of(tool),
        marker("<｜tool▁call▁end｜>"),
    ])
}

/// As V3 and R1 write it.
fn deepseek_fenced(tool: &Tool) -> Result<Vec<Part>> {
    Ok(vec![
        marker("<｜tool▁call▁begin｜>"),
        text("function"),
        marker("<｜tool▁sep｜>"),
        text(&format!("{}\n```json\n", tool.name)),
        arguments_of(tool),
        text("\n```"),
        marker("<｜tool▁call▁end｜>"),
    ])
}

fn kimi(tool: &Tool) -> Result<Vec<Part>> {
    Ok(vec![
        marker("<|tool_call_begin|>"),
        text(&format!("functions.{}:", tool.name)),
        Part::Match("[0-9]{1,2}".to_owned()),
        marker("<|tool_call_argument_begin|>"),
        arguments_of(tool),
        marker("<|tool_call_end|>"),
    ])
}

// --- parts ---

const ANY_TEXT: &str = "(?s:.*)";

/// The arguments as JSON. What a tool's schema asks beyond what can be enforced is between the client and
/// the model.
fn arguments_of(tool: &Tool) -> Part {
    let mut schema = tool.parameters.clone().unwrap_or_default();
    schema.entry("type").or_insert("object".into());
    json(schema, &Map::new())
}

/// JSON of `schema`, a part of `root`.
fn json(mut schema: Map<String, Value>, root: &Map<String, Value>) -> Part {
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            schema.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    Part::Json { schema: Value::Object(schema).to_string(), strict: false }
}

/// What the JSON pointer `path` points to.
fn find<'a>(root: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut steps = path.strip_prefix('/')?.split('/');
    let first = root.get(steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step))
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn marker(name: &str) -> Part {
    Part::Marker(name.to_owned())
}

/// A match of `body` that spells none of `others`, up to `end`.
fn until(body: &str, others: &[&str], end: Vec<Part>) -> Part {
    let but = others.iter().map(|other| (*other).to_owned()).collect();
    Part::Until { body: body.to_owned(), but, end }
}

/// `markup` with each of `marks` as a marker.
fn split(markup: &str, marks: &[&str]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = markup;
    loop {
        let found = marks.iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min();
        let before = found.map_or(rest.len(), |(at, _)| at);
        if before > 0 {
            parts.push(text(&rest[..before]));
        }
        let Some((at, mark)) = found else {
            return parts;
        };
        parts.push(marker(mark));
        rest = &rest[at + mark.len()..];
    }
}

/// `markup` with its tags as markers, which some vocabularies have as tokens.
fn tagged(markup: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = markup;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').map_or(rest.len(), |end| start + end + 1);
        if start > 0 {
            parts.push(text(&rest[..start]));
        }
        parts.push(marker(&rest[start..end]));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        parts.push(text(rest));
    }
    parts
}

#[cfg(test)]
mod tests;
