//! A conversation in the one form that the gateway takes, built from what each dialect lists.
//!
//! Messages are OpenAI's with text contents; an assistant's message may hold `reasoning_content` and
//! `tool_calls`. In dialects that list pieces, what an assistant says, thinks and calls in a row is one
//! message; in those that list messages, each is begun by itself. What the model's own template cannot
//! take is the gateway's to say in another way.

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
        self.begin(Map::new(), role, text);
    }

    /// A message with fields of its own, whoever says it. If it is the assistant, what it thinks and calls
    /// next is a part of it.
    pub(super) fn begin(&mut self, mut message: Map<String, Value>, role: &str, text: &str) {
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), text.into());
        self.messages.push(Value::Object(message));
    }

    /// The assistant says `text`.
    pub(super) fn answer(&mut self, text: &str) {
        append(self.assistant(), "content", text);
    }

    /// The assistant thinks `text`.
    pub(super) fn think(&mut self, text: &str) {
        append(self.assistant(), "reasoning_content", text);
    }

    /// The assistant calls a tool, with arguments that are an object or its text.
    pub(super) fn call(&mut self, id: Option<&str>, name: &str, arguments: &Value) {
        let mut call = Map::new();
        call.extend(id.map(|id| ("id".to_owned(), id.into())));
        call.insert("type".to_owned(), "function".into());
        call.insert("function".to_owned(), json!({"name": name, "arguments": arguments}));
        let calls =
            self.assistant().entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(calls) = calls {
            calls.push(call.into());
        }
    }

    /// The result of the call `id`.
    pub(super) fn result(&mut self, id: &str, text: &str) {
        let id = Map::from_iter([("tool_call_id".to_owned(), id.into())]);
        self.begin(id, "tool", text);
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
    fn what_an_assistant_does_in_a_row_is_one_message_until_another_is_begun() {
        let mut conversation = Conversation::default();
        conversation.say("user", "weather?");
        conversation.think("a tool");
        conversation.answer("one");
        conversation.answer("two");
        conversation.call(Some("c1"), "weather", &json!({"city": "Rome"}));
        conversation.call(None, "time", &json!("{}"));
        conversation.result("c1", "sunny");
        conversation.answer("done");
        let own = json!({"name": "bot"}).as_object().cloned().unwrap();
        conversation.begin(own, "assistant", "more");
        conversation.think("over");
        let calls = json!([
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
            {"type": "function", "function": {"name": "time", "arguments": "{}"}},
        ]);
        assert_eq!(
            Value::from(conversation.into_messages()),
            json!([
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant", "content": "one\ntwo", "reasoning_content": "a tool",
                    "tool_calls": calls,
                },
                {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
                {"role": "assistant", "content": "done"},
                {
                    "role": "assistant", "content": "more", "name": "bot",
                    "reasoning_content": "over",
                },
            ])
        );
    }
}
