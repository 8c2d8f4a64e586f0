//! Conversations in the form that a model's template takes.
//!
//! Agents send histories that many templates refuse or, worse, leave parts of out: system messages in
//! the middle, two user turns in a row, several calls at once, calls and results where the model knows
//! none. What a template can take is found out once, by rendering small conversations and looking
//! whether every word is there ([`Manners`]); what it cannot take is said in another way. Where the
//! template takes everything, a history is rendered as it is.

use serde_json::{Map, Value, json};

use crate::tokenizer::{ChatOptions, ChatTemplate};

/// What stands between messages that become one.
const BETWEEN: &str = "\n\n";

/// What one template can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manners {
    /// Contents have to be lists of parts.
    parts: bool,
    system: bool,
    /// Two system messages at the beginning.
    repeated_system: bool,
    /// System messages after others.
    late_system: bool,
    /// Answers before anybody asked.
    early_assistant: bool,
    repeated_user: bool,
    repeated_assistant: bool,
    calls: Calls,
    parallel_calls: bool,
    /// Messages of the role `tool`.
    results: bool,
    /// Ids in OpenAI's form.
    long_ids: bool,
    /// Descriptions of tools.
    pub(super) tools: bool,
}

/// How earlier calls are handed to a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// With their arguments as objects.
    Objects,
    /// With the text of their arguments.
    Texts,
    /// Not at all: they are a part of the content.
    Content,
}

impl Manners {
    /// Finds out what `template` can take.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let user = || message("user", "uone");
        let text = Probe { template, parts: false };
        let parts = !text.shows(&[user()], &["uone"])
            && Probe { template, parts: true }.shows(&[user()], &["uone"]);
        let probe = Probe { template, parts };
        let system = |name| message("system", name);
        let assistant = |name| message("assistant", name);
        let two_users = [user(), message("user", "utwo")];
        let two_answers = [user(), assistant("aone"), assistant("atwo"), message("user", "utwo")];
        let late =
            [system("sone"), user(), assistant("aone"), system("stwo"), message("user", "utwo")];
        let calls = [Calls::Objects, Calls::Texts].into_iter().find(|calls| {
            probe.shows(&called(*calls, &[NINE]), &["uone", "toolname", "argname", "argvalue"])
        });
        let calls = calls.unwrap_or(Calls::Content);
        Self {
            parts,
            system: probe.shows(&[system("sone"), user()], &["sone", "uone"]),
            repeated_system: probe
                .shows(&[system("sone"), system("stwo"), user()], &["sone", "stwo", "uone"]),
            late_system: probe.shows(&late, &["sone", "uone", "aone", "stwo", "utwo"]),
            early_assistant: probe.shows(&[assistant("aone"), user()], &["aone", "uone"]),
            repeated_user: probe.shows(&two_users, &["uone", "utwo"]),
            repeated_assistant: probe.shows(&two_answers, &["uone", "aone", "atwo", "utwo"]),
            calls,
            parallel_calls: probe.shows(
                &called(calls, &[NINE, "bcdefghij"]),
                &["toolname", "argvalue", "toolname", "argvalue", "resultword", "resultword"],
            ),
            // A model that knows no calls knows no results, even if its template prints any role.
            results: calls != Calls::Content
                && probe.shows(&called(calls, &[NINE]), &["uone", "resultword", "utwo"]),
            long_ids: probe.shows(&called(calls, &["call_abcdefghijklmnopqrstuvwx"]), &["utwo"]),
            tools: probe.shows_tools(),
        }
    }

    /// `messages` as the template takes them.
    pub(super) fn adapt(&self, messages: Vec<Value>) -> Vec<Value> {
        let mut messages = with_names(messages);
        messages = self.adapt_calls(messages);
        messages = self.adapt_system(messages);
        messages = self.merge_turns(messages);
        let first = messages.iter().position(|message| message["role"] != "system");
        if let Some(first) = first.filter(|first| messages[*first]["role"] == "assistant")
            && !self.early_assistant
        {
            messages.insert(first, message("user", ""));
        }
        if self.parts {
            messages.iter_mut().for_each(into_parts);
        }
        messages
    }

    fn adapt_calls(&self, messages: Vec<Value>) -> Vec<Value> {
        let mut messages = if self.calls != Calls::Content && !self.parallel_calls {
            one_call_per_message(messages)
        } else {
            messages
        };
        for message in &mut messages {
            match self.calls {
                Calls::Objects => each_call(message, |function| {
                    function["arguments"] = arguments_object(&function["arguments"]);
                }),
                Calls::Texts => each_call(message, |function| {
                    function["arguments"] = arguments_text(&function["arguments"]).into();
                }),
                Calls::Content => calls_into_content(message),
            }
            if !self.long_ids {
                shorten_ids(message);
            }
            if message["role"] == "tool" && !self.results {
                result_into_content(message);
            }
        }
        messages
    }

    fn adapt_system(&self, messages: Vec<Value>) -> Vec<Value> {
        let leading = messages.iter().take_while(|message| message["role"] == "system").count();
        let mut adapted: Vec<Value> = Vec::with_capacity(messages.len());
        for (index, mut message) in messages.into_iter().enumerate() {
            let is_system = message["role"] == "system";
            let merges = is_system && (1..leading).contains(&index) && !self.repeated_system;
            match adapted.last_mut().filter(|_| merges) {
                Some(first) => append_content(first, &message),
                None => {
                    let takes = if index < leading { self.system } else { self.late_system };
                    if is_system && !takes {
                        message["role"] = "user".into();
                    }
                    adapted.push(message);
                }
            }
        }
        // What was said to be the system's comes before what the user says.
        let folded = leading > 0 && !self.system && adapted.get(1).is_some_and(is_user);
        if folded && self.repeated_user {
            let user = adapted.remove(1);
            append_content(&mut adapted[0], &user);
        }
        adapted
    }

    fn merge_turns(&self, messages: Vec<Value>) -> Vec<Value> {
        let mut merged: Vec<Value> = Vec::with_capacity(messages.len());
        for message in messages {
            let merges = |role: &str, taken: bool| {
                let before = merged.last().is_some_and(|last| last["role"] == role);
                !taken && before && message["role"] == role
            };
            let merges =
                merges("user", self.repeated_user) || merges("assistant", self.repeated_assistant);
            match merged.last_mut().filter(|_| merges) {
                Some(last) => append_content(last, &message),
                None => merged.push(message),
            }
        }
        merged
    }
}

/// Tells a model whose template knows no tools of `tools`, and how to call them.
pub(super) fn describe_tools(messages: &mut Vec<Value>, tools: &[Value]) {
    let list: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let text = format!(
        "You can call tools. Each line between these tags describes one, its parameters as a JSON schema:\n\
         <tools>\n{}\n</tools>\n\
         To call a tool, write a JSON object with its name and its arguments between two tags:\n\
         <tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{\"KEY\": \"VALUE\"}}}}\n</tool_call>\n\
         The tool's result then comes between <tool_response> tags.",
        list.join("\n")
    );
    match messages.first_mut().filter(|first| first["role"] == "system") {
        Some(first) => append_content(first, &message("system", &text)),
        None => messages.insert(0, message("system", &text)),
    }
}

// --- finding out ---

/// An id that every template takes.
const NINE: &str = "abcdefghi";

/// A template, and in which form it takes contents.
struct Probe<'a> {
    template: &'a ChatTemplate,
    parts: bool,
}

impl Probe<'_> {
    /// Whether the template renders `messages` with all of `words`, in this order.
    fn shows(&self, messages: &[Value], words: &[&str]) -> bool {
        self.render(messages, None).is_some_and(|text| {
            let mut rest = text.as_str();
            words.iter().all(|word| match rest.split_once(word) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            })
        })
    }

    fn shows_tools(&self) -> bool {
        let properties = json!({"argname": {"type": "string", "description": "argument"}});
        let parameters =
            json!({"type": "object", "properties": properties, "required": ["argname"]});
        let function = json!({
            "name": "toolname", "description": "description", "parameters": parameters,
        });
        let tools = vec![json!({"type": "function", "function": function})];
        let text = self.render(&[message("user", "uone")], Some(tools));
        text.is_some_and(|text| text.contains("toolname") && text.contains("argname"))
    }

    fn render(&self, messages: &[Value], tools: Option<Vec<Value>>) -> Option<String> {
        let mut messages = messages.to_vec();
        if self.parts {
            messages.iter_mut().for_each(into_parts);
        }
        let options = ChatOptions { add_generation_prompt: true, tools, ..ChatOptions::default() };
        self.template.render(&messages, &options).ok()
    }
}

/// A conversation with one call and one result per id.
fn called(calls: Calls, ids: &[&str]) -> Vec<Value> {
    let arguments = json!({"argname": "argvalue"});
    let arguments = if calls == Calls::Texts { arguments.to_string().into() } else { arguments };
    let call = |id: &&str| {
        let function = json!({"name": "toolname", "arguments": arguments.clone()});
        json!({"id": id, "type": "function", "function": function})
    };
    let mut answer = message("assistant", "");
    if calls != Calls::Content {
        answer["tool_calls"] = ids.iter().map(call).collect();
    }
    let result = |id: &&str| {
        let mut result = message("tool", "resultword");
        result["tool_call_id"] = (*id).into();
        result["name"] = "toolname".into();
        result
    };
    let before = [message("user", "uone"), answer];
    let after = [message("assistant", "atwo"), message("user", "utwo")];
    before.into_iter().chain(ids.iter().map(result)).chain(after).collect()
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

// --- saying it in another way ---

fn is_user(message: &Value) -> bool {
    message["role"] == "user"
}

/// Results with the names of the tools that they are of, which some templates print.
fn with_names(mut messages: Vec<Value>) -> Vec<Value> {
    let mut names: Map<String, Value> = Map::new();
    for message in &mut messages {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        for call in calls {
            if let Some(id) = call["id"].as_str() {
                names.insert(id.to_owned(), call["function"]["name"].clone());
            }
        }
        let name = message["tool_call_id"].as_str().and_then(|id| names.get(id)).cloned();
        if let Some(name) = name.filter(|_| message["role"] == "tool" && message["name"].is_null())
        {
            message["name"] = name;
        }
    }
    messages
}

/// An answer with several calls as several answers, each followed by its result.
fn one_call_per_message(messages: Vec<Value>) -> Vec<Value> {
    let mut single = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = match message["tool_calls"].as_array_mut() {
            Some(calls) if calls.len() > 1 => std::mem::take(calls),
            _ => {
                single.push(message);
                continue;
            }
        };
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        for call in calls {
            let id = call["id"].clone();
            message["tool_calls"] = vec![call].into();
            single.push(message.clone());
            // The text belongs to the first.
            message["content"] = "".into();
            if let Some(place) = results.iter().position(|result| result["tool_call_id"] == id) {
                single.push(results.remove(place));
            }
        }
        single.extend(results);
    }
    single
}

fn each_call(message: &mut Value, mut change: impl FnMut(&mut Value)) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if call["function"].is_object() {
            change(&mut call["function"]);
        }
    }
}

/// Arguments as an object; text that is none is handed on as what it is.
fn arguments_object(arguments: &Value) -> Value {
    let Some(text) = arguments.as_str() else {
        return if arguments.is_null() { json!({}) } else { arguments.clone() };
    };
    match serde_json::from_str::<Value>(text) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.trim().is_empty() => json!({}),
        _ => json!({"arguments": text}),
    }
}

fn arguments_text(arguments: &Value) -> String {
    match arguments {
        Value::String(text) => text.clone(),
        Value::Null => "{}".to_owned(),
        other => other.to_string(),
    }
}

fn calls_into_content(message: &mut Value) {
    let Some(Value::Array(calls)) =
        message.as_object_mut().and_then(|m| m.shift_remove("tool_calls"))
    else {
        return;
    };
    for call in calls {
        let arguments = arguments_object(&call["function"]["arguments"]);
        let call = json!({"name": call["function"]["name"], "arguments": arguments});
        let text = format!("<tool_call>\n{call}\n</tool_call>");
        append_text(message, &text, "\n");
    }
}

fn result_into_content(message: &mut Value) {
    let content = message["content"].as_str().unwrap_or_default();
    let text = format!("<tool_response>\n{content}\n</tool_response>");
    *message = json!({"role": "user", "content": text});
}

/// Ids of nine letters and digits, the same for the same id.
fn shorten_ids(message: &mut Value) {
    let shorten = |id: &mut Value| {
        if let Some(long) = id.as_str() {
            *id = nine_letters(long).into();
        }
    };
    if let Some(id) = message.get_mut("tool_call_id") {
        shorten(id);
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(shorten);
}

fn nine_letters(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a: short, and the same in every run, so that prompts stay the same.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let digit = |place: u32| {
        let digit = hash / 36_u64.pow(place) % 36;
        char::from_digit(u32::try_from(digit).unwrap_or_default(), 36).unwrap_or('0')
    };
    (0..9).map(digit).collect()
}

/// Puts the content and the calls of `message` behind those of `target`.
fn append_content(target: &mut Value, message: &Value) {
    append_text(target, message["content"].as_str().unwrap_or_default(), BETWEEN);
    if let Some(calls) = message["tool_calls"].as_array() {
        match target.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(before) => before.extend(calls.iter().cloned()),
            None => target["tool_calls"] = calls.clone().into(),
        }
    }
}

fn append_text(target: &mut Value, text: &str, between: &str) {
    let before = target["content"].as_str().unwrap_or_default();
    let between = if before.is_empty() || text.is_empty() { "" } else { between };
    target["content"] = format!("{before}{between}{text}").into();
}

fn into_parts(message: &mut Value) {
    if let Some(text) = message["content"].as_str() {
        message["content"] = json!([{"type": "text", "text": text}]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Result;
    use crate::gateway::script::tokenizer_of;
    use crate::tokenizer::Tokenizer;

    /// One way of saying an answer with calls in the templates below.
    const CALLS: &str = "{% if message.tool_calls %}{% for call in message.tool_calls %}<call>\
        {{ call.id }}{{ call.function.name }}{{ call.function.arguments | tojson }}</call>{% endfor %}{% endif %}";

    /// What the templates of real models insist on.
    fn templates() -> Vec<(&'static str, String)> {
        let generous = format!(
            "{{% for tool in tools or [] %}}{{{{ tool | tojson }}}}{{% endfor %}}\
             {{% for message in messages %}}<{{{{ message.role }}}}>{{{{ message.content }}}}{CALLS}{{% endfor %}}"
        );
        let alternating = "{% for message in messages %}\
            {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}\
            <{{ message.role }}>{{ message.content | trim }}{% endfor %}";
        let no_system = format!(
            "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no system') }}}}{{% endif %}}{alternating}"
        );
        let folded_system = format!(
            "{{% if messages[0].role == 'system' %}}{{{{ messages[0].content }}}}{{% set messages = messages[1:] %}}{{% endif %}}{alternating}"
        );
        let first_system = format!(
            "{{% for message in messages %}}{{% if message.role != 'system' or loop.first %}}<{{{{ message.role }}}}>{{{{ message.content }}}}{CALLS}{{% endif %}}{{% endfor %}}"
        );
        let system_at_front = format!(
            "{{% for message in messages %}}{{% if message.role == 'system' and not loop.first %}}{{{{ raise_exception('must be first') }}}}{{% endif %}}{{{{ message.content }}}}{CALLS}{{% endfor %}}"
        );
        let texts = "{% for message in messages %}<{{ message.role }}>{% if message.tool_calls is defined and message.tool_calls is not none %}\
            {{ message.content }}{% for call in message.tool_calls %}{{ '<call>' + call['function']['name'] + '<sep>' + call['function']['arguments'] }}{% endfor %}\
            {% else %}{{ message.content }}{% endif %}{% endfor %}";
        let single = format!(
            "{{% for message in messages %}}{{% if message.tool_calls and message.tool_calls | length != 1 %}}{{{{ raise_exception('single calls only') }}}}{{% endif %}}{{{{ message.content }}}}{CALLS}{{% endfor %}}"
        );
        let nine = format!(
            "{{% for message in messages %}}{{% for call in message.tool_calls or [] %}}{{% if call.id | length != 9 %}}{{{{ raise_exception('nine') }}}}{{% endif %}}{{% endfor %}}\
             {{% if message.role == 'tool' and message.tool_call_id | length != 9 %}}{{{{ raise_exception('nine') }}}}{{% endif %}}{{{{ message.content }}}}{CALLS}{{% endfor %}}"
        );
        let parts = "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}";
        vec![
            ("generous", generous),
            (
                "plain",
                "{% for message in messages %}{{ message.role }}{{ message.content }}{% endfor %}"
                    .to_owned(),
            ),
            ("no_system", no_system),
            ("folded_system", folded_system),
            ("first_system", first_system),
            ("system_at_front", system_at_front),
            ("texts", texts.to_owned()),
            ("single", single),
            ("nine", nine),
            ("parts", parts.to_owned()),
        ]
    }

    fn render(tokenizer: &Tokenizer, messages: Vec<Value>) -> Result<String> {
        let template = tokenizer.chat_template().unwrap();
        let adapted = Manners::of(template).adapt(messages);
        template.render(&adapted, &ChatOptions::default())
    }

    /// What an agent may send: system messages anywhere, turns in a row, calls with their results.
    fn any_history() -> impl Strategy<Value = Vec<Value>> {
        let turn = (0..5_usize, 1..3_usize);
        prop::collection::vec(turn, 0..7).prop_map(|turns| {
            let mut messages = Vec::new();
            for (index, (kind, calls)) in turns.into_iter().enumerate() {
                match kind {
                    0 => messages.push(message("system", &format!("system{index}."))),
                    1 => messages.push(message("user", &format!("user{index}."))),
                    2 if index > 0 => {
                        messages.push(message("assistant", &format!("answer{index}.")));
                    }
                    _ => messages.extend(turn_with_calls(index, calls)),
                }
            }
            messages.push(message("user", "the end."));
            messages
        })
    }

    fn turn_with_calls(index: usize, calls: usize) -> Vec<Value> {
        let id = |call: usize| format!("call_{index}_{call}_abcdefghijkl");
        let mut answer = message("assistant", &format!("calls{index}."));
        let call = |call| {
            let arguments = json!({"key": format!("value{index}_{call}.")}).to_string();
            let function = json!({"name": format!("tool{index}_{call}"), "arguments": arguments});
            json!({"id": id(call), "type": "function", "function": function})
        };
        answer["tool_calls"] = (0..calls).map(call).collect();
        let result = |call| {
            let mut result = message("tool", &format!("result{index}_{call}."));
            result["tool_call_id"] = id(call).into();
            result
        };
        let before = [message("user", &format!("ask{index}.")), answer];
        before.into_iter().chain((0..calls).map(result)).collect()
    }

    /// Every word of a history that has to reach the model.
    fn words(messages: &[Value]) -> Vec<String> {
        let mut words = Vec::new();
        for message in messages {
            words.push(message["content"].as_str().unwrap().to_owned());
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                words.push(call["function"]["name"].as_str().unwrap().to_owned());
                let arguments: Value =
                    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                words.push(arguments["key"].as_str().unwrap().to_owned());
            }
        }
        words
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_template_says_every_word_of_a_history(history in any_history()) {
            for (name, template) in templates() {
                let tokenizer = tokenizer_of(&template, &[]);
                let text = render(&tokenizer, history.clone());
                let text = text.map_err(|error| TestCaseError::fail(format!("{name}: {error}")))?;
                for word in words(&history) {
                    prop_assert!(text.contains(&word), "{name}: {word} of {history:#?} in {text}");
                }
            }
        }
    }

    #[test]
    fn a_template_that_takes_everything_gets_the_history_as_it_is() {
        let history = [
            vec![message("system", "a"), message("system", "b"), message("user", "c")],
            turn_with_calls(1, 2),
            vec![message("assistant", "d"), message("assistant", "e"), message("system", "f")],
        ]
        .concat();
        let (_, template) = &templates()[0];
        let tokenizer = tokenizer_of(template, &[]);
        let manners = Manners::of(tokenizer.chat_template().unwrap());
        let mut expected = with_names(history.clone());
        for message in &mut expected {
            each_call(message, |function| {
                function["arguments"] = arguments_object(&function["arguments"]);
            });
        }
        assert_eq!(manners.adapt(history), expected);
        assert!(manners.tools);
        assert_eq!(expected[6]["name"], "tool1_1");
    }

    #[test]
    fn arguments_of_any_kind_become_objects() {
        let check = |arguments: Value, object: Value| {
            assert_eq!(arguments_object(&arguments), object, "{arguments}");
        };
        check(json!("{\"a\": 1}"), json!({"a": 1}));
        check(json!({"a": 1}), json!({"a": 1}));
        check(json!(""), json!({}));
        check(Value::Null, json!({}));
        check(json!("{\"a\": "), json!({"arguments": "{\"a\": "}));
        check(json!("[1]"), json!({"arguments": "[1]"}));
    }

    #[test]
    fn short_ids_are_the_same_for_the_same_id_and_differ_for_others() {
        assert_eq!(nine_letters("abcDEF123"), "abcDEF123");
        let ids = ["call_1", "call_2", "functions.a:0", "functions.a:1", ""].map(nine_letters);
        for (index, id) in ids.iter().enumerate() {
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
            assert!(!ids[..index].contains(id));
        }
    }

    #[test]
    fn a_model_that_knows_no_tools_is_told_of_them() {
        let tools = [json!({"type": "function", "function": {"name": "now"}})];
        let mut messages = vec![message("user", "hi")];
        describe_tools(&mut messages, &tools);
        assert_eq!(messages.len(), 2);
        describe_tools(&mut messages, &tools);
        assert_eq!(messages.len(), 2);
        let text = messages[0]["content"].as_str().unwrap();
        assert!(text.contains("{\"name\":\"now\"}") && text.contains("<tool_call>"), "{text}");
    }
}
