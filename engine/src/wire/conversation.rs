//! A conversation in the one form that chat templates read, built from other dialects' items.
//!
//! Messages are OpenAI's with text contents; an assistant's message may hold `reasoning_content` and
//! `tool_calls`, whose arguments are objects. What an assistant says in a row is one message, in
//! whatever pieces it comes. A tool's result names the tool, for templates that ask.

use serde_json::{Map, Value, json};

/// Messages in the making.
#[derive(Debug, Clone, Default)]
pub(super) struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// A conversation that goes on from `messages`.
    pub(super) fn after(messages: Vec<Value>) -> Self {
        Self { messages }
    }

    /// All messages, in order.
    pub(super) fn into_messages(self) -> Vec<Value> {
        self.messages
    }

    /// The role of the last message.
    pub(super) fn last_role(&self) -> Option<&str> {
        self.messages.last().and_then(|message| message["role"].as_str())
    }

    /// A message of another than the assistant.
    pub(super) fn say(&mut self, role: &str, text: &str) {
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// The assistant says `text`.
    pub(super) fn answer(&mut self, text: &str) {
        append(self.assistant(), "content", text);
    }

    /// The assistant thinks `text`.
    pub(super) fn think(&mut self, text: &str) {
        append(self.assistant(), "reasoning_content", text);
    }

    /// The assistant calls a tool.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        let mut call = json!({"id": id, "type": "function", "function": {"name": name}});
        call["function"]["arguments"] = arguments;
        let calls =
            self.assistant().entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
    }

    /// The result of the call `id`.
    pub(super) fn result(&mut self, id: &str, text: &str) {
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
        if let Some(name) = self.called(id) {
            message["name"] = Value::from(name);
        }
        self.messages.push(message);
    }

    /// The name of the tool that was called as `id`.
    fn called(&self, id: &str) -> Option<String> {
        let calls =
            self.messages.iter().rev().filter_map(|message| message["tool_calls"].as_array());
        let call = calls.flatten().find(|call| call["id"] == id)?;
        call["function"]["name"].as_str().map(str::to_owned)
    }

    /// The assistant's message that is being made.
    fn assistant(&mut self) -> &mut Map<String, Value> {
        if self.last_role() != Some("assistant") {
            self.say("assistant", "");
        }
        let last = self.messages.last_mut().and_then(Value::as_object_mut);
        last.expect("messages are objects, and there is one now")
    }
}

/// Adds a paragraph to a text field.
fn append(message: &mut Map<String, Value>, name: &str, text: &str) {
    let before = message.get(name).and_then(Value::as_str).unwrap_or_default();
    let joined = if before.is_empty() { text.to_owned() } else { format!("{before}\n{text}") };
    message.insert(name.to_owned(), Value::from(joined));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_assistant_does_in_a_row_is_one_message_and_results_bear_the_tools_name() {
        let mut conversation = Conversation::default();
        conversation.say("user", "weather?");
        conversation.think("a tool");
        conversation.answer("one");
        conversation.answer("two");
        conversation.call("c1", "weather", json!({"city": "Rome"}));
        conversation.call("c2", "time", json!({}));
        conversation.result("c1", "sunny");
        conversation.result("c9", "lost");
        conversation.answer("done");
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = [call("c1", "weather", json!({"city": "Rome"})), call("c2", "time", json!({}))];
        assert_eq!(
            Value::from(conversation.into_messages()),
            json!([
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant", "content": "one\ntwo", "reasoning_content": "a tool",
                    "tool_calls": calls,
                },
                {"role": "tool", "tool_call_id": "c1", "content": "sunny", "name": "weather"},
                {"role": "tool", "tool_call_id": "c9", "content": "lost"},
                {"role": "assistant", "content": "done"},
            ])
        );
    }
}
