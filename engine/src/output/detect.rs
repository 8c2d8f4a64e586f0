//! Which format a model writes, told from its chat template and its vocabulary.

use super::format::{AnswerFormat, MessageFormat, ReasoningFormat, ToolFormat};
use super::messages::{self, Recipient};
use super::parser::Beginning;

/// What a format's templates contain; the first that fits decides, so the more particular come first.
const TEMPLATES: &[(&[&str], ToolFormat)] = &[
    (&["<|channel|>", "<|message|>"], ToolFormat::Harmony),
    (&["<atem:function_calls>"], ToolFormat::MuseSpark),
    (&["<minimax:tool_call>"], ToolFormat::MiniMax),
    (&["<|tool_call>", "<tool_call|>"], ToolFormat::Gemma4),
    (&["<start_function_call>"], ToolFormat::FunctionGemma),
    (&["<longcat_tool_call>"], ToolFormat::Longcat),
    (&["<seed:tool_call>"], ToolFormat::SeedXml),
    (&["<arg_key>"], ToolFormat::Glm),
    (&["<|tool_call_start|>"], ToolFormat::Pythonic),
    (&["<|tool_list_start|>"], ToolFormat::Pythonic),
    (&["<|tool_calls_section_begin|>"], ToolFormat::KimiK2),
    (&["<|open|>", "<|sep|>"], ToolFormat::KimiK3),
    (&["｜DSML｜"], ToolFormat::DeepSeekMarkup),
    (&["<｜tool▁calls▁begin｜>"], ToolFormat::DeepSeek),
    (&["<function name=\"", "<param name=\""], ToolFormat::MiniCpm5),
    (&["<tool_call>", "<function="], ToolFormat::QwenXml),
    (&["[TOOL_CALLS]"], ToolFormat::Mistral),
    (&["<|START_ACTION|>"], ToolFormat::Cohere),
    (&["<TOOLCALL>"], ToolFormat::Nemotron),
    (&["<tool_calls>"], ToolFormat::JsonList),
    (&["<function_calls>"], ToolFormat::PythonicLines),
    (&["<|tool_call|>"], ToolFormat::Granite),
    (&["<tool_call>"], ToolFormat::Json),
    (&["<|python_start|>"], ToolFormat::PythonicList),
    (&["<|python_tag|>"], ToolFormat::Llama3),
    // Llama 3.2 and later name neither tag, but the role of tools and the key of arguments.
    (&["ipython", "\"parameters\""], ToolFormat::Llama3),
    (&["<function="], ToolFormat::QwenXml),
];

/// Tokens that only models of one format have, for templates that say nothing of calls.
const VOCABULARIES: &[(&[&str], ToolFormat)] = &[
    (&["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"], ToolFormat::KimiK3),
    (&["<|tool_call_start|>", "<|tool_call_end|>"], ToolFormat::Pythonic),
    (&["<|start|>", "<|channel|>", "<|message|>", "<|call|>"], ToolFormat::Harmony),
    (&["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"], ToolFormat::KimiK2),
    (&["<|tool_call>", "<tool_call|>"], ToolFormat::Gemma4),
    (&["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"], ToolFormat::DeepSeek),
];

/// Names that `tool_parser_type` of `tokenizer_config.json` has, as mlx-lm 0.32.2 reads it.
const NAMES: &[(&str, ToolFormat)] = &[
    ("function_gemma", ToolFormat::FunctionGemma),
    ("gemma4", ToolFormat::Gemma4),
    ("glm47", ToolFormat::Glm),
    ("json_tools", ToolFormat::Json),
    ("kimi_k2", ToolFormat::KimiK2),
    ("kimi_k3", ToolFormat::KimiK3),
    ("laguna", ToolFormat::Glm),
    ("longcat", ToolFormat::Longcat),
    ("minicpm5", ToolFormat::MiniCpm5),
    ("minimax_m2", ToolFormat::MiniMax),
    ("mistral", ToolFormat::Mistral),
    ("muse_spark", ToolFormat::MuseSpark),
    ("pythonic", ToolFormat::Pythonic),
    ("qwen3_coder", ToolFormat::QwenXml),
];

impl AnswerFormat {
    /// The format of a model with this chat template, where `has_token` tells its vocabulary.
    pub fn detect(template: &str, has_token: impl Fn(&str) -> bool) -> Self {
        let contains = |markers: &[&str]| markers.iter().all(|marker| template.contains(marker));
        let knows = |markers: &[&str]| markers.iter().all(|marker| has_token(marker));
        let by_template = TEMPLATES.iter().find(|(markers, _)| contains(markers));
        let by_vocabulary = || VOCABULARIES.iter().find(|(markers, _)| knows(markers));
        let tools = by_template.or_else(by_vocabulary).map(|(_, tools)| *tools);
        let messages = tools.and_then(ToolFormat::messages);
        let writes = |format: &ReasoningFormat| {
            let (begin, end) = format.markers();
            template.contains(end) || template.contains(begin) || knows(&format.tokens())
        };
        let reasoning =
            ReasoningFormat::ALL.into_iter().filter(|_| messages.is_none()).find(writes);
        Self { reasoning, tools, messages }
    }

    /// The same with the tool calls of `tool_parser_type`, if that name is known.
    pub fn with_tool_parser(self, name: &str) -> Self {
        let named = NAMES.iter().find(|(known, _)| *known == name);
        named.map_or(self, |(_, tools)| {
            let messages = tools.messages();
            let reasoning = self.reasoning.filter(|_| messages.is_none());
            Self { reasoning, tools: Some(*tools), messages }
        })
    }

    /// The tokens that the parser has to see though they are special; `calls` says whether it looks
    /// for calls.
    pub fn tokens(&self, calls: bool) -> Vec<&'static str> {
        let tools = self.tools.filter(|tools| calls || tools.frames_answers());
        let reasoning = self.reasoning.map(ReasoningFormat::tokens).unwrap_or_default();
        let ends = self.messages.map_or(&[][..], MessageFormat::ends);
        let heads = [MessageFormat::START, MessageFormat::HEAD_END];
        let heads = heads.into_iter().filter(|_| self.messages.is_some());
        let tools = tools.map_or(&[][..], ToolFormat::tokens);
        tools.iter().chain(ends).copied().chain(heads).chain(reasoning).collect()
    }

    /// Where the answer to a prompt begins, told from the prompt's text.
    pub fn beginning(&self, prompt: &str) -> Beginning {
        if let Some(messages) = self.messages {
            return beginning_of_message(messages, prompt);
        }
        if self.leaves_reasoning_open(prompt) { Beginning::Reasoning } else { Beginning::Text }
    }

    /// Whether `text` begins reasoning that it does not end.
    pub fn leaves_reasoning_open(&self, text: &str) -> bool {
        let markers = self.reasoning.map(ReasoningFormat::markers);
        markers.is_some_and(|(begin, end)| text.rfind(begin) > text.rfind(end))
    }
}

impl ToolFormat {
    /// How answers of models with these calls fall into messages.
    fn messages(self) -> Option<MessageFormat> {
        match self {
            Self::Harmony => Some(MessageFormat::Harmony),
            Self::MuseSpark => Some(MessageFormat::MuseSpark),
            _ => None,
        }
    }

    /// Whether the tokens of calls frame answers without calls too.
    fn frames_answers(self) -> bool {
        self.messages().is_some() || !self.silent().is_empty()
    }
}

fn beginning_of_message(format: MessageFormat, prompt: &str) -> Beginning {
    let Some(at) = prompt.rfind(MessageFormat::START) else {
        return Beginning::Head;
    };
    let last = &prompt[at + MessageFormat::START.len()..];
    let Some((head, text)) = last.split_once(MessageFormat::HEAD_END) else {
        return Beginning::Head;
    };
    if format.ends().iter().any(|end| text.contains(end)) {
        return Beginning::Head;
    }
    match messages::recipient(format, head) {
        Recipient::Itself => Beginning::Reasoning,
        Recipient::User | Recipient::Tool(_) => Beginning::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(template: &str) -> AnswerFormat {
        AnswerFormat::detect(template, |_| false)
    }

    /// Every format is found by what stands at its place in the table, and by nothing before it.
    #[test]
    fn every_template_marker_leads_to_its_format() {
        for (markers, tools) in TEMPLATES {
            assert_eq!(detect(&markers.join(" … ")).tools, Some(*tools), "{markers:?}");
        }
        for (tokens, tools) in VOCABULARIES {
            let format = AnswerFormat::detect("", |token| tokens.contains(&token));
            assert_eq!(format.tools, Some(*tools), "{tokens:?}");
        }
        let found = |tools: &ToolFormat| TEMPLATES.iter().any(|(_, other)| other == tools);
        assert!(ToolFormat::ALL.iter().all(found));
    }

    #[test]
    fn templates_in_the_manners_of_real_families_are_known() {
        let (think, glm) = (Some(ReasoningFormat::Think), Some(ToolFormat::Glm));
        let expected = [
            ("argument_tags", glm, think),
            ("chatml", None, None),
            ("header_blocks_with_tools", Some(ToolFormat::Llama3), None),
            ("instruct_with_ids", Some(ToolFormat::Mistral), None),
            ("thinking_with_tools", Some(ToolFormat::Json), think),
            ("turns_with_parts", None, None),
        ];
        for (name, tools, reasoning) in expected {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../goldens/templates");
            let golden = std::fs::read(format!("{dir}/{name}.json")).unwrap();
            let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
            let format = detect(golden["template"].as_str().unwrap());
            assert_eq!((format.tools, format.reasoning), (tools, reasoning), "{name}");
        }
    }

    #[test]
    fn every_pair_of_think_markers_is_found_by_template_and_by_vocabulary() {
        for reasoning in ReasoningFormat::ALL {
            let (begin, end) = reasoning.markers();
            let strip = format!("{{{{ content.split('{end}')[-1] }}}}");
            assert_eq!(detect(&strip).reasoning, Some(reasoning));
            assert_eq!(detect(begin).reasoning, Some(reasoning));
            let tokens = reasoning.tokens();
            let format = AnswerFormat::detect("", |token| tokens.contains(&token));
            assert_eq!(format.reasoning, Some(reasoning));
        }
        assert_eq!(detect("plain"), AnswerFormat::default());
    }

    #[test]
    fn a_named_parser_wins_over_the_template() {
        let format = detect("<think> <tool_call>").with_tool_parser("glm47");
        assert_eq!(format.tools, Some(ToolFormat::Glm));
        assert_eq!(format.reasoning, Some(ReasoningFormat::Think));
        assert_eq!(format.with_tool_parser("nonesuch"), format);
    }

    #[test]
    fn the_prompt_tells_where_the_answer_begins() {
        let think = detect("<think></think>");
        let check = |format: AnswerFormat, prompt, beginning| {
            assert_eq!(format.beginning(prompt), beginning, "{prompt}");
        };
        check(think, "<|im_start|>assistant\n", Beginning::Text);
        check(think, "<think>a</think>b<|im_start|>assistant\n<think>\n", Beginning::Reasoning);
        check(think, "assistant\n<think>\n\n</think>\n\n", Beginning::Text);
        check(think, "assistant</think>", Beginning::Text);
        let gemma = detect("<|channel>thought <|tool_call> <tool_call|>");
        check(gemma, "<|turn>model\n<|channel>thought\n<channel|>", Beginning::Text);
        check(gemma, "<|turn>model\n<|channel>thought\n", Beginning::Reasoning);
        let harmony = detect("<|channel|> <|message|>");
        check(harmony, "<|start|>user<|message|>Hi<|end|><|start|>assistant", Beginning::Head);
        check(harmony, "<|start|>assistant<|channel|>final<|message|>", Beginning::Text);
        check(harmony, "<|start|>assistant<|channel|>analysis<|message|>", Beginning::Reasoning);
        check(harmony, "<|start|>user<|message|>Hi<|end|>", Beginning::Head);
    }

    #[test]
    fn tokens_of_calls_are_shown_only_where_calls_are_looked_for() {
        let format = detect("<think> [TOOL_CALLS]");
        assert!(format.tokens(true).contains(&"[TOOL_CALLS]"));
        assert_eq!(format.tokens(false), ["<think>", "</think>"]);
        let harmony = detect("<|channel|> <|message|>");
        assert!(harmony.tokens(false).contains(&"<|channel|>"));
    }
}
