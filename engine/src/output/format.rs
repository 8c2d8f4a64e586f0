//! How models write reasoning and tool calls: the tables of all formats.

use super::calls::{
    Branch, HeadStyle, HeaderCalls, HeaderStyle, IdForm, JsonCalls, JsonStyle, Markup, NameStyle,
    PythonCalls, PythonStyle, SentinelCalls, SentinelStyle, TagCalls, TagStyle, Trim,
};

/// How a model writes what is not plain text; by default it writes nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// What surrounds its reasoning, if it reasons.
    pub reasoning: Option<ReasoningFormat>,
    /// How it writes tool calls, if it was taught to.
    pub tools: Option<ToolFormat>,
    /// How its answer falls into messages, if it does.
    pub messages: Option<MessageFormat>,
}

/// What surrounds reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// `<think>`: Qwen, DeepSeek, GLM, MiniCPM, MiniMax, SmolLM and most others.
    Think,
    /// `<longcat_think>`.
    Longcat,
    /// `<|think:start|>`.
    ThinkStart,
    /// `<seed:think>`.
    Seed,
    /// `<mm:think>`: MiniMax M3.
    Mm,
    /// `[THINK]`: Magistral and Ministral.
    Mistral,
    /// `<|START_THINKING|>`: Command A and R.
    Cohere,
    /// `<|channel>thought`: Gemma 4.
    Gemma4,
    /// `<|open|>think<|sep|>`: Kimi K3.
    KimiK3,
    /// `◁think▷`: Kimi-VL and Kimi-Dev.
    Kimi,
    /// `<|inner_prefix|>`: Apertus.
    Apertus,
    /// `<|begin_of_thought|>`: OpenThinker and others.
    Thought,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, and others.
    Json,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder,
    /// Qwen 3.5 and later.
    QwenXml,
    /// The same in `<seed:tool_call>`: Seed-OSS.
    SeedXml,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM 4.5 and
    /// later, Laguna.
    Glm,
    /// The same with `longcat_` before the names of the tags.
    Longcat,
    /// `<function name="NAME"><param name="KEY">VALUE</param></function>`: MiniCPM5.
    MiniCpm5,
    /// `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`.
    MiniMax,
    /// `<atem:function_calls>` with tags as MiniMax's: Muse Spark.
    MuseSpark,
    /// `<｜DSML｜function_calls>` with tags as MiniMax's: DeepSeek V3.2 and later.
    DeepSeekMarkup,
    /// `<｜tool▁calls▁begin｜>` and JSON arguments: DeepSeek V3, R1 and V3.1.
    DeepSeek,
    /// `<|tool_calls_section_begin|>` and JSON arguments: Kimi K2.
    KimiK2,
    /// `<|open|>tools<|sep|>` and tags: Kimi K3.
    KimiK3,
    /// `<|tool_call>call:NAME{KEY:VALUE}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<start_function_call>call:NAME{KEY:VALUE}<end_function_call>`: FunctionGemma.
    FunctionGemma,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`, or a list of JSON objects: Mistral.
    Mistral,
    /// Messages to `functions.NAME`: gpt-oss.
    Harmony,
    /// `{"name": …, "parameters": {…}}` as the whole answer, perhaps after `<|python_tag|>`: Llama 3.
    Llama3,
    /// `<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>`: LFM2.
    Pythonic,
    /// `[NAME(KEY=VALUE)]` as the whole answer, perhaps between markers: Llama 4.
    PythonicList,
    /// `<function_calls>` and a Python call per line: OLMo 3.
    PythonicLines,
    /// `<tool_calls>[{…}]</tool_calls>`: Apriel, Hunyuan, Jamba.
    JsonList,
    /// `<TOOLCALL>[{…}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// `<|START_ACTION|>[{…}]<|END_ACTION|>`: Command A and R.
    Cohere,
    /// `<|tool_call|>[{…}]`: Granite and Phi-4.
    Granite,
}

/// How an answer falls into messages with heads of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageFormat {
    /// `<|channel|>NAME<|message|>`: gpt-oss.
    Harmony,
    /// `to=NAME<|message|>`: Muse Spark.
    MuseSpark,
}

/// What begins the markup of calls.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) marker: &'static str,
    /// Whether the marker is a part of the markup that the machine reads.
    pub(super) inside: bool,
    /// Whether it only counts as the very beginning of the visible answer.
    pub(super) first: bool,
    pub(super) begin: fn() -> Markup,
}

impl ReasoningFormat {
    /// Every format.
    pub const ALL: [Self; 12] = [
        Self::Think,
        Self::Longcat,
        Self::ThinkStart,
        Self::Seed,
        Self::Mm,
        Self::Mistral,
        Self::Cohere,
        Self::Gemma4,
        Self::KimiK3,
        Self::Kimi,
        Self::Apertus,
        Self::Thought,
    ];

    /// What opens and what closes reasoning.
    pub fn markers(self) -> (&'static str, &'static str) {
        match self {
            Self::Think => ("<think>", "</think>"),
            Self::Longcat => ("<longcat_think>", "</longcat_think>"),
            Self::ThinkStart => ("<|think:start|>", "<|think:end|>"),
            Self::Seed => ("<seed:think>", "</seed:think>"),
            Self::Mm => ("<mm:think>", "</mm:think>"),
            Self::Mistral => ("[THINK]", "[/THINK]"),
            Self::Cohere => ("<|START_THINKING|>", "<|END_THINKING|>"),
            Self::Gemma4 => ("<|channel>thought", "<channel|>"),
            Self::KimiK3 => ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            Self::Kimi => ("◁think▷", "◁/think▷"),
            Self::Apertus => ("<|inner_prefix|>", "<|inner_suffix|>"),
            Self::Thought => ("<|begin_of_thought|>", "<|end_of_thought|>"),
        }
    }
}

impl ReasoningFormat {
    /// The tokens that the markers are written with, which have to stay visible to the parser.
    pub(super) fn tokens(self) -> Vec<&'static str> {
        match self {
            Self::Gemma4 => vec!["<|channel>", "<channel|>"],
            Self::KimiK3 => vec!["<|open|>", "<|close|>", "<|sep|>"],
            _ => {
                let (begin, end) = self.markers();
                vec![begin, end]
            }
        }
    }
}

impl ToolFormat {
    /// Every format.
    pub const ALL: [Self; 24] = [
        Self::Json,
        Self::QwenXml,
        Self::SeedXml,
        Self::Glm,
        Self::Longcat,
        Self::MiniCpm5,
        Self::MiniMax,
        Self::MuseSpark,
        Self::DeepSeekMarkup,
        Self::DeepSeek,
        Self::KimiK2,
        Self::KimiK3,
        Self::Gemma4,
        Self::FunctionGemma,
        Self::Mistral,
        Self::Harmony,
        Self::Llama3,
        Self::Pythonic,
        Self::PythonicList,
        Self::PythonicLines,
        Self::JsonList,
        Self::Nemotron,
        Self::Cohere,
        Self::Granite,
    ];

    /// The form of ids that the family's templates take.
    pub(super) fn id_form(self) -> IdForm {
        match self {
            Self::Mistral => IdForm::Nine,
            Self::KimiK2 => IdForm::Counted,
            _ => IdForm::Long,
        }
    }

    /// What begins the markup of calls.
    pub(super) fn openings(self) -> &'static [Opening] {
        match self {
            Self::Json => &[TOOL_CALL_JSON, BARE_FUNCTION, BARE_JSON],
            Self::QwenXml => &[TOOL_CALL_XML, BARE_FUNCTION, BARE_JSON],
            Self::SeedXml => &[SEED, BARE_FUNCTION],
            Self::Glm => &[TOOL_CALL_GLM],
            Self::Longcat => &[LONGCAT],
            Self::MiniCpm5 => &[MINICPM],
            Self::MiniMax => &[MINIMAX],
            Self::MuseSpark => &[MUSE],
            Self::DeepSeekMarkup => &[DSML_FUNCTIONS, DSML_TOOLS],
            Self::DeepSeek => &[DEEPSEEK, DEEPSEEK_CALL],
            Self::KimiK2 => &[KIMI_K2, KIMI_K2_CALL],
            Self::KimiK3 => &[KIMI_K3],
            Self::Gemma4 => &[GEMMA4],
            Self::FunctionGemma => &[FUNCTION_GEMMA],
            Self::Mistral => &[MISTRAL, BARE_JSON, BARE_JSON_LIST],
            Self::Harmony => &[],
            Self::Llama3 => &[PYTHON_TAG, BARE_FUNCTION, BARE_JSON],
            Self::Pythonic => &[LFM],
            Self::PythonicList => &[PYTHON_START, BARE_PYTHON],
            Self::PythonicLines => &[FUNCTION_CALLS],
            Self::JsonList => &[TOOL_CALLS],
            Self::Nemotron => &[NEMOTRON],
            Self::Cohere => &[COHERE],
            Self::Granite => &[GRANITE, BARE_JSON],
        }
    }

    /// Markers that mean nothing by themselves and are no part of the visible answer.
    pub(super) fn silent(self) -> &'static [&'static str] {
        match self {
            Self::KimiK3 => {
                &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"]
            }
            _ => &[],
        }
    }

    /// Every special token in which calls may be written, so that it has to stay visible to the parser.
    pub(super) fn tokens(self) -> &'static [&'static str] {
        match self {
            Self::Json | Self::QwenXml | Self::Glm => &[
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::SeedXml => &["<seed:tool_call>", "</seed:tool_call>"],
            Self::Longcat => &[
                "<longcat_tool_call>",
                "</longcat_tool_call>",
                "<longcat_arg_key>",
                "</longcat_arg_key>",
                "<longcat_arg_value>",
                "</longcat_arg_value>",
            ],
            Self::MiniCpm5 => &["<function", "</function>", "<param", "</param>"],
            Self::MiniMax => &["<minimax:tool_call>", "</minimax:tool_call>"],
            Self::MuseSpark => &["<atem:function_calls>", "</atem:function_calls>"],
            Self::DeepSeekMarkup => &["｜DSML｜", "<｜DSML｜", "</｜DSML｜"],
            Self::DeepSeek => &[
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁call▁end｜>",
                "<｜tool▁sep｜>",
            ],
            Self::KimiK2 => &[
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_begin|>",
                "<|tool_call_end|>",
                "<|tool_call_argument_begin|>",
            ],
            Self::KimiK3 => &["<|open|>", "<|close|>", "<|sep|>"],
            Self::Gemma4 => &["<|tool_call>", "<tool_call|>", "<|\"|>"],
            Self::FunctionGemma => &["<start_function_call>", "<end_function_call>", "<escape>"],
            Self::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::Harmony => &[
                "<|start|>",
                "<|channel|>",
                "<|message|>",
                "<|constrain|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
            ],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Pythonic => &["<|tool_call_start|>", "<|tool_call_end|>"],
            Self::PythonicList => &["<|python_start|>", "<|python_end|>"],
            Self::PythonicLines => &["<function_calls>", "</function_calls>"],
            Self::JsonList => &["<tool_calls>", "</tool_calls>"],
            Self::Nemotron => &["<TOOLCALL>", "</TOOLCALL>"],
            Self::Cohere => &["<|START_ACTION|>", "<|END_ACTION|>"],
            Self::Granite => &["<|tool_call|>", "<|/tool_call|>"],
        }
    }
}

impl MessageFormat {
    /// What ends a message's head.
    pub(super) const HEAD_END: &'static str = "<|message|>";

    /// What begins another message's head.
    pub(super) const START: &'static str = "<|start|>";

    /// What ends a message.
    pub(super) fn ends(self) -> &'static [&'static str] {
        match self {
            Self::Harmony => &["<|end|>", "<|call|>", "<|return|>"],
            Self::MuseSpark => &["<|eom|>", "<|eot|>"],
        }
    }
}

// --- openings ---

const fn opening(marker: &'static str, begin: fn() -> Markup) -> Opening {
    Opening { marker, inside: false, first: false, begin }
}

const TOOL_CALL_JSON: Opening = opening("<tool_call>", || Markup::Choice(JSON_OR_XML));
const TOOL_CALL_XML: Opening = TOOL_CALL_JSON;
const TOOL_CALL_GLM: Opening = opening("<tool_call>", || Markup::Choice(JSON_OR_GLM));
const BARE_FUNCTION: Opening =
    Opening { inside: true, ..opening("<function=", || Markup::Tags(TagCalls::new(&QWEN_BARE))) };
const BARE_JSON: Opening = Opening {
    inside: true,
    first: true,
    ..opening("{", || Markup::Json(JsonCalls::new(&JSON_BARE)))
};
const BARE_JSON_LIST: Opening = Opening {
    inside: true,
    first: true,
    ..opening("[", || Markup::Json(JsonCalls::new(&JSON_BARE)))
};
const SEED: Opening = opening("<seed:tool_call>", || Markup::Tags(TagCalls::new(&SEED_STYLE)));
const LONGCAT: Opening = opening("<longcat_tool_call>", || Markup::Choice(JSON_OR_LONGCAT));
const MINICPM: Opening = Opening {
    inside: true,
    ..opening("<function ", || Markup::Tags(TagCalls::new(&MINICPM_STYLE)))
};
const MINIMAX: Opening =
    opening("<minimax:tool_call>", || Markup::Tags(TagCalls::new(&MINIMAX_STYLE)));
const MUSE: Opening = opening("<atem:function_calls>", || Markup::Tags(TagCalls::new(&MUSE_STYLE)));
const DSML_FUNCTIONS: Opening =
    opening("<｜DSML｜function_calls>", || Markup::Tags(TagCalls::new(&DSML_FUNCTIONS_STYLE)));
const DSML_TOOLS: Opening =
    opening("<｜DSML｜tool_calls>", || Markup::Tags(TagCalls::new(&DSML_TOOLS_STYLE)));
const DEEPSEEK: Opening =
    opening("<｜tool▁calls▁begin｜>", || Markup::Header(HeaderCalls::new(&DEEPSEEK_STYLE)));
const DEEPSEEK_CALL: Opening = Opening {
    inside: true,
    ..opening("<｜tool▁call▁begin｜>", || Markup::Header(HeaderCalls::new(&DEEPSEEK_STYLE)))
};
const KIMI_K2: Opening =
    opening("<|tool_calls_section_begin|>", || Markup::Header(HeaderCalls::new(&KIMI_STYLE)));
const KIMI_K2_CALL: Opening = Opening {
    inside: true,
    ..opening("<|tool_call_begin|>", || Markup::Header(HeaderCalls::new(&KIMI_STYLE)))
};
const KIMI_K3: Opening =
    opening("<|open|>tools<|sep|>", || Markup::Tags(TagCalls::new(&KIMI_K3_STYLE)));
const GEMMA4: Opening =
    opening("<|tool_call>", || Markup::Sentinel(SentinelCalls::new(&GEMMA4_STYLE)));
const FUNCTION_GEMMA: Opening = opening("<start_function_call>", || {
    Markup::Sentinel(SentinelCalls::new(&FUNCTION_GEMMA_STYLE))
});
const MISTRAL: Opening = opening("[TOOL_CALLS]", || Markup::Choice(JSON_OR_HEADER));
const PYTHON_TAG: Opening = opening("<|python_tag|>", || Markup::Choice(JSON_OR_PYTHON));
const LFM: Opening = opening("<|tool_call_start|>", || Markup::Choice(JSON_OR_LFM));
const PYTHON_START: Opening =
    opening("<|python_start|>", || Markup::Python(PythonCalls::new(&LLAMA4_STYLE)));
const BARE_PYTHON: Opening = Opening {
    inside: true,
    first: true,
    ..opening("[", || Markup::Python(PythonCalls::new(&PYTHON_BARE)))
};
const FUNCTION_CALLS: Opening =
    opening("<function_calls>", || Markup::Python(PythonCalls::new(&OLMO_STYLE)));
const TOOL_CALLS: Opening =
    opening("<tool_calls>", || Markup::Json(JsonCalls::new(&JSON_LIST_STYLE)));
const NEMOTRON: Opening = opening("<TOOLCALL>", || Markup::Json(JsonCalls::new(&NEMOTRON_STYLE)));
const COHERE: Opening = opening("<|START_ACTION|>", || Markup::Json(JsonCalls::new(&COHERE_STYLE)));
const GRANITE: Opening = opening("<|tool_call|>", || Markup::Json(JsonCalls::new(&GRANITE_STYLE)));

// --- what may follow an opening that several formats share ---

const fn json_branches(begin: fn() -> Markup) -> [Branch; 3] {
    [Branch { first: "{", begin }, Branch { first: "[", begin }, Branch { first: "```", begin }]
}

const fn json_or(json: fn() -> Markup, first: &'static str, begin: fn() -> Markup) -> [Branch; 4] {
    let [object, list, fence] = json_branches(json);
    [object, list, fence, Branch { first, begin }]
}

fn tool_call_json() -> Markup {
    Markup::Json(JsonCalls::new(&JSON_STYLE))
}

static JSON_OR_XML: &[Branch] =
    &json_or(tool_call_json, "<function=", || Markup::Tags(TagCalls::new(&QWEN_STYLE)));
static JSON_OR_GLM: &[Branch] =
    &json_or(tool_call_json, "", || Markup::Tags(TagCalls::new(&GLM_STYLE)));
static JSON_OR_LONGCAT: &[Branch] = &json_or(
    || Markup::Json(JsonCalls::new(&LONGCAT_JSON_STYLE)),
    "",
    || Markup::Tags(TagCalls::new(&LONGCAT_STYLE)),
);
static JSON_OR_HEADER: &[Branch] = &json_or(
    || Markup::Json(JsonCalls::new(&MISTRAL_JSON_STYLE)),
    "",
    || Markup::Header(HeaderCalls::new(&MISTRAL_STYLE)),
);
static JSON_OR_PYTHON: &[Branch] = &json_or(
    || Markup::Json(JsonCalls::new(&LLAMA_JSON_STYLE)),
    "",
    || Markup::Python(PythonCalls::new(&LLAMA_PYTHON_STYLE)),
);
static JSON_OR_LFM: &[Branch] = &[
    Branch { first: "{", begin: || Markup::Json(JsonCalls::new(&LFM_JSON_STYLE)) },
    Branch { first: "", begin: || Markup::Python(PythonCalls::new(&LFM_STYLE)) },
];

// --- styles: JSON ---

const fn json(close: &'static str) -> JsonStyle {
    JsonStyle { close, bare: false }
}

static JSON_STYLE: JsonStyle = json("</tool_call>");
static JSON_BARE: JsonStyle = JsonStyle { close: "", bare: true };
static LONGCAT_JSON_STYLE: JsonStyle = json("</longcat_tool_call>");
static MISTRAL_JSON_STYLE: JsonStyle = json("");
// A python tag may come before code as well.
static LLAMA_JSON_STYLE: JsonStyle = JsonStyle { close: "", bare: true };
static LFM_JSON_STYLE: JsonStyle = json("<|tool_call_end|>");
static JSON_LIST_STYLE: JsonStyle = json("</tool_calls>");
static NEMOTRON_STYLE: JsonStyle = json("</TOOLCALL>");
static COHERE_STYLE: JsonStyle = json("<|END_ACTION|>");
static GRANITE_STYLE: JsonStyle = json("<|/tool_call|>");

// --- styles: Python ---

static LFM_STYLE: PythonStyle = PythonStyle { close: "<|tool_call_end|>", bare: false, suffix: "" };
static LLAMA4_STYLE: PythonStyle = PythonStyle { close: "<|python_end|>", bare: false, suffix: "" };
static OLMO_STYLE: PythonStyle =
    PythonStyle { close: "</function_calls>", bare: false, suffix: "" };
static PYTHON_BARE: PythonStyle = PythonStyle { close: "", bare: true, suffix: "" };
static LLAMA_PYTHON_STYLE: PythonStyle = PythonStyle { close: "", bare: false, suffix: ".call" };

// --- styles: tags ---

const QWEN: TagStyle = TagStyle {
    section_close: "</tool_call>",
    call_open: "<function=",
    name: NameStyle::Plain { end: ">" },
    call_close: "</function>",
    key_open: "<parameter=",
    key_end: ">",
    value_open: "",
    value_close: "</parameter>",
    trim: Trim::Line,
    json: ("", ""),
    guess: false,
    bare: false,
};
static QWEN_STYLE: TagStyle = QWEN;
static QWEN_BARE: TagStyle = TagStyle { bare: true, ..QWEN };
static SEED_STYLE: TagStyle = TagStyle { section_close: "</seed:tool_call>", ..QWEN };
const GLM: TagStyle = TagStyle {
    section_close: "",
    call_open: "",
    name: NameStyle::Bare,
    call_close: "</tool_call>",
    key_open: "<arg_key>",
    key_end: "</arg_key>",
    value_open: "<arg_value>",
    value_close: "</arg_value>",
    trim: Trim::Nothing,
    json: ("", ""),
    guess: true,
    bare: false,
};
static GLM_STYLE: TagStyle = GLM;
static LONGCAT_STYLE: TagStyle = TagStyle {
    call_close: "</longcat_tool_call>",
    key_open: "<longcat_arg_key>",
    key_end: "</longcat_arg_key>",
    value_open: "<longcat_arg_value>",
    value_close: "</longcat_arg_value>",
    ..GLM
};
static MINICPM_STYLE: TagStyle = TagStyle {
    section_close: "",
    call_open: "<function ",
    name: NameStyle::Attributes { call: "name", key: "name", end: ">" },
    call_close: "</function>",
    key_open: "<param ",
    key_end: ">",
    value_open: "",
    value_close: "</param>",
    trim: Trim::All,
    json: ("", ""),
    guess: false,
    bare: false,
};
const MINIMAX_TAGS: TagStyle = TagStyle {
    section_close: "</minimax:tool_call>",
    call_open: "<invoke ",
    name: NameStyle::Attributes { call: "name", key: "name", end: ">" },
    call_close: "</invoke>",
    key_open: "<parameter ",
    key_end: ">",
    value_open: "",
    value_close: "</parameter>",
    trim: Trim::Line,
    json: ("", ""),
    guess: false,
    bare: false,
};
static MINIMAX_STYLE: TagStyle = MINIMAX_TAGS;
static MUSE_STYLE: TagStyle = TagStyle {
    section_close: "</atem:function_calls>",
    call_open: "<atem:invoke ",
    call_close: "</atem:invoke>",
    key_open: "<atem:parameter ",
    value_close: "</atem:parameter>",
    guess: true,
    ..MINIMAX_TAGS
};
const DSML: TagStyle = TagStyle {
    section_close: "</｜DSML｜function_calls>",
    call_open: "<｜DSML｜invoke ",
    call_close: "</｜DSML｜invoke>",
    key_open: "<｜DSML｜parameter ",
    value_close: "</｜DSML｜parameter>",
    trim: Trim::Nothing,
    ..MINIMAX_TAGS
};
static DSML_FUNCTIONS_STYLE: TagStyle = DSML;
static DSML_TOOLS_STYLE: TagStyle = TagStyle { section_close: "</｜DSML｜tool_calls>", ..DSML };
static KIMI_K3_STYLE: TagStyle = TagStyle {
    section_close: "<|close|>tools<|sep|>",
    call_open: "<|open|>call",
    name: NameStyle::Attributes { call: "tool", key: "key", end: "<|sep|>" },
    call_close: "<|close|>call<|sep|>",
    key_open: "<|open|>argument",
    key_end: "<|sep|>",
    value_open: "",
    value_close: "<|close|>argument<|sep|>",
    trim: Trim::Nothing,
    json: ("<|open|>json", "<|close|>json<|sep|>"),
    guess: false,
    bare: false,
};

// --- styles: heads ---

static DEEPSEEK_STYLE: HeaderStyle = HeaderStyle {
    call_open: "<｜tool▁call▁begin｜>",
    head_end: "<｜tool▁sep｜>",
    call_close: "<｜tool▁call▁end｜>",
    section_close: "<｜tool▁calls▁end｜>",
    head: HeadStyle::NameOrKind,
};
static KIMI_STYLE: HeaderStyle = HeaderStyle {
    call_open: "<|tool_call_begin|>",
    head_end: "<|tool_call_argument_begin|>",
    call_close: "<|tool_call_end|>",
    section_close: "<|tool_calls_section_end|>",
    head: HeadStyle::Counted,
};
static MISTRAL_STYLE: HeaderStyle = HeaderStyle {
    call_open: "",
    head_end: "[ARGS]",
    call_close: "",
    section_close: "",
    head: HeadStyle::NameAndId { id: "[CALL_ID]" },
};

// --- styles: sentinels ---

static GEMMA4_STYLE: SentinelStyle = SentinelStyle { close: "<tool_call|>", quote: "<|\"|>" };
static FUNCTION_GEMMA_STYLE: SentinelStyle =
    SentinelStyle { close: "<end_function_call>", quote: "<escape>" };
