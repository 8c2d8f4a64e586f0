//! How a model writes reasoning and tool calls, and how to tell from its files.

/// How a model writes what is not plain text; by default it writes nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// What surrounds its reasoning, if it reasons.
    pub reasoning: Option<ReasoningFormat>,
    /// How it writes tool calls, if it was taught to.
    pub tools: Option<ToolFormat>,
}

/// What surrounds reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// `<think>`…`</think>`: Qwen, DeepSeek, GLM, MiniCPM and most others.
    Think,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes and Qwen.
    Json,
}
