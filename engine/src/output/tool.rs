//! Tools as a request describes them.

use serde_json::{Map, Value, json};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// What the model calls it by.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments, an object; `None` takes any.
    pub parameters: Option<Map<String, Value>>,
}

impl Tool {
    /// The tool as chat templates print it: OpenAI's form.
    pub fn template_value(&self) -> Value {
        let mut function = json!({"name": self.name});
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        // Templates read `parameters.properties` without asking whether they exist.
        function["parameters"] = match &self.parameters {
            Some(parameters) => Value::Object(parameters.clone()),
            None => json!({"type": "object", "properties": {}}),
        };
        json!({"type": "function", "function": function})
    }

    /// The schema of the argument `name`, if there is one.
    pub fn argument_schema(&self, name: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(name)
    }
}
