//! Random markup: nothing is lost, nothing panics, and cuts change nothing.

use proptest::prelude::*;

use super::*;

/// What random answers are made of: everything that means something in some format, and words.
const PIECES: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function name=\"",
    "<param name=\"",
    "</param>",
    "<![CDATA[",
    "]]>",
    "<|tool_call>",
    "<tool_call|>",
    "call:",
    "<|\"|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "analysis",
    "final",
    " to=functions.now",
    "commentary",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<minimax:tool_call>",
    "<invoke name=\"",
    "</invoke>",
    "<parameter name=\"",
    "<|open|>tools<|sep|>",
    "<|open|>call tool=\"now\"<|sep|>",
    "<|close|>call<|sep|>",
    "<think>",
    "</think>",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "'",
    "\\",
    "\\u00",
    ":",
    ",",
    "=",
    ";",
    ">",
    "<",
    "\n",
    " ",
    "```",
    "json",
    "now",
    "get_weather",
    "write-file",
    "\"name\": ",
    "\"arguments\": ",
    "\"now\"",
    "{\"name\": \"now\", \"arguments\": {",
    "city",
    "days",
    "text",
    "1",
    "-2.5",
    "true",
    "null",
    "word",
    "é",
    "😀",
];

/// A well-formed answer of each family, to be spoilt.
const ANSWERS: &[(ToolFormat, &str)] = &[
    (
        ToolFormat::Json,
        "<think>a</think>b <tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": [1, \"\\n\"]}}\n</tool_call> c",
    ),
    (
        ToolFormat::QwenXml,
        "b\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\nc",
    ),
    (
        ToolFormat::Glm,
        "b<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>c",
    ),
    (
        ToolFormat::MiniCpm5,
        "b<function name=\"write-file\"><param name=\"path\">a</param><param name=\"text\"><![CDATA[x]]></param></function>c",
    ),
    (
        ToolFormat::MiniMax,
        "b<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n</minimax:tool_call>c",
    ),
    (
        ToolFormat::KimiK3,
        "<|open|>response<|sep|>b<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"now\"<|sep|><|open|>json<|sep|>{\"a\": 1}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>c",
    ),
    (
        ToolFormat::KimiK2,
        "b<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>c",
    ),
    (
        ToolFormat::DeepSeek,
        "b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>c",
    ),
    (ToolFormat::Mistral, "b[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{\"a\": 1}[TOOL_CALLS]now{}"),
    (ToolFormat::Gemma4, "b<|tool_call>call:now{a:<|\"|>x<|\"|>,b:{c:[1,true]}}<tool_call|>c"),
    (
        ToolFormat::Pythonic,
        "b<|tool_call_start|>[now(a='x', b=[1, (True, None)]), now()]<|tool_call_end|>c",
    ),
    (
        ToolFormat::Llama3,
        "{\"name\": \"now\", \"parameters\": {\"a\": 1}}; {\"name\": \"now\", \"parameters\": {}}",
    ),
    (
        ToolFormat::Harmony,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{\"a\": 1}<|call|>",
    ),
];

/// What happens to an answer: bytes that go, come twice, or are replaced.
fn spoilt(text: &str, edits: &[(usize, usize, usize)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for &(at, count, what) in edits {
        let at = at % (characters.len() + 1);
        let end = (at + count).min(characters.len());
        let piece = PIECES[what % PIECES.len()].chars();
        let replacement: Vec<char> = match what % 4 {
            0 => Vec::new(),
            1 => characters[at..end].iter().chain(&characters[at..end]).copied().collect(),
            2 => piece.collect(),
            _ => piece.chain(characters[at..end].iter().copied()).collect(),
        };
        characters.splice(at..end, replacement);
    }
    characters.into_iter().collect()
}

fn any_text() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(PIECES), 0..24)
}

fn any_format() -> impl Strategy<Value = AnswerFormat> {
    prop::sample::select(&ToolFormat::ALL[..]).prop_map(format_of)
}

fn format_of(tools: ToolFormat) -> AnswerFormat {
    match tools {
        ToolFormat::Harmony => AnswerFormat {
            tools: Some(tools),
            reasoning: None,
            messages: Some(MessageFormat::Harmony),
        },
        ToolFormat::MuseSpark => AnswerFormat {
            tools: Some(tools),
            reasoning: None,
            messages: Some(MessageFormat::MuseSpark),
        },
        _ => calls(tools),
    }
}

fn any_end() -> impl Strategy<Value = TextEnd> {
    prop_oneof![Just(TextEnd::Complete), Just(TextEnd::Cut)]
}

/// Whether `letters` come in `text` in this order.
fn is_told(letters: &str, text: &str) -> bool {
    let mut rest = text.chars();
    letters.chars().all(|letter| rest.any(|other| other == letter))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn random_markup_is_the_same_however_it_is_cut(
        pieces in any_text(),
        format in any_format(),
        end in any_end(),
    ) {
        let text = pieces.concat();
        let whole = folded(&parts(&format, &options(), [text.as_str()], end));
        let cut = folded(&parts(&format, &options(), pieces.iter().copied(), end));
        prop_assert_eq!(&cut, &whole, "{:?}", text);
        let letters = text.split_inclusive(|_: char| true);
        let letters = folded(&parts(&format, &options(), letters, end));
        prop_assert_eq!(&letters, &whole, "{:?}", text);
    }

    #[test]
    fn spoilt_answers_are_the_same_however_they_are_cut(
        answer in prop::sample::select(ANSWERS),
        edits in prop::collection::vec((0..200_usize, 0..8_usize, any::<usize>()), 0..4),
        place in any::<prop::sample::Index>(),
        end in any_end(),
    ) {
        let format = format_of(answer.0);
        let text = spoilt(answer.1, &edits);
        let whole = folded(&parts(&format, &options(), [text.as_str()], end));
        let letters = text.split_inclusive(|_: char| true);
        let letters = folded(&parts(&format, &options(), letters, end));
        prop_assert_eq!(&letters, &whole, "{:?}", text);
        let at = text.char_indices().map(|(at, _)| at).nth(place.index(text.len() + 1));
        let (one, two) = text.split_at(at.unwrap_or(text.len()));
        let cut = folded(&parts(&format, &options(), [one, two], end));
        prop_assert_eq!(&cut, &whole, "{:?} and {:?}", one, two);
    }

    #[test]
    fn words_outside_markup_are_all_told(
        pieces in any_text(),
        // Heads of messages are markup, whatever they say.
        format in any_format().prop_filter("messages", |format| format.messages.is_none()),
    ) {
        // Words that no format knows stand between the pieces.
        let words: Vec<String> = (0..pieces.len()).map(|index| format!("Ω{index}Ω")).collect();
        let text: String = pieces.iter().zip(&words).map(|(piece, word)| format!("{piece}{word}")).collect();
        let parts = parts(&format, &options(), [text.as_str()], TextEnd::Complete);
        let told: String = parts.iter().map(|part| match part {
            AnswerPart::Reasoning(text) | AnswerPart::Text(text) => text.clone(),
            AnswerPart::ToolCallStarted { id, name, .. } => format!("{id}{name}"),
            AnswerPart::ToolCallArguments { json, .. } => json.clone(),
            AnswerPart::ToolCallEnded { .. } => String::new(),
        }).collect();
        for word in &words {
            prop_assert!(is_told(word, &told), "{} of {:?} in {:?}", word, text, parts);
        }
    }

    #[test]
    fn any_characters_are_told_where_no_format_is_known(text in any::<String>()) {
        let mut parser = AnswerParser::plain();
        let mut answer: FoldedAnswer = parser.push(&text).into_iter().collect();
        answer.extend(parser.finish(TextEnd::Complete));
        prop_assert_eq!(answer.text, text);
    }
}
