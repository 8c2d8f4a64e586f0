//! Every format of tool calls, well formed and with the slips that models make.

use serde_json::json;

use super::*;

fn paris() -> serde_json::Value {
    json!({"city": "Paris", "days": 2})
}

#[test]
fn json_calls() {
    let format = calls(ToolFormat::Json);
    let paris_call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n</tool_call>";
    check(format, paris_call, "", "", &[("get_weather", paris())]);
    check(
        format,
        &format!("<think>\nSo.\n</think>\n\nLet me look.\n\n{paris_call}\n{paris_call}\nDone."),
        "So.",
        "Let me look.\n\n\n\nDone.",
        &[("get_weather", paris()), ("get_weather", paris())],
    );
    let slips = [
        // Two objects in one block, a list, and a fence.
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        "<tool_call>[{\"name\": \"now\"}, {\"name\": \"now\", \"parameters\": null},]</tool_call>",
        "<tool_call>\n```json\n{\"name\": \"now\", \"arguments\": {}}\n```\n</tool_call><tool_call>{\"arguments\": {}, \"name\": \"now\"}</tool_call>",
        // Brackets too many and too few, and no closing tag.
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}}</tool_call><tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call>",
        "<tool_call>{\"name\": \"now\"</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {",
        "{\"name\": \"now\", \"arguments\": {}}<tool_call>{\"function\": {\"name\": \"now\", \"arguments\": \"{}\"}, \"type\": \"function\"}</tool_call>",
    ];
    for slip in slips {
        check(format, slip, "", "", &[("now", json!({})), ("now", json!({}))]);
    }
}

#[test]
fn json_arguments_are_repaired_where_it_is_sure_what_they_mean() {
    let format = calls(ToolFormat::Json);
    let arguments = [
        ("{'city': 'Par\\'is', \"days\": None,}", json!({"city": "Par'is", "days": null})),
        ("{city: \"a\nb\t\\d\", ok: True}", json!({"city": "a\nb\t\\d", "ok": true})),
        (
            "{\"a\": [1, .5, +2, [{}],], \"b\": \"\\ud83d\\ude00\\u00e9\\ud83d\"}",
            json!({"a": [1, 0.5, 2, [{}]], "b": "😀é\u{FFFD}"}),
        ),
        ("\"{\\\"city\\\": \\\"Paris\\\"}\"", json!({"city": "Paris"})),
        (
            "{\"text\": \"</tool_call> <think> {\\\"name\\\"\"}",
            json!({"text": "</tool_call> <think> {\"name\""}),
        ),
    ];
    for (written, meant) in arguments {
        let text =
            format!("<tool_call>{{\"name\": \"now\", \"arguments\": {written}}}</tool_call>");
        check(format, &text, "", "", &[("now", meant)]);
    }
}

#[test]
fn markup_that_is_no_call_is_text() {
    let json = [
        "<tool_call>no object</tool_call>",
        "Use `<tool_call>` for calls, and <tool_call",
        "<tool_call>{\"name\": 5}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>[]</tool_call>",
        "{\"name\": \"unknown\", \"arguments\": {}}",
        "{\"name\": \"now\", \"city\": 5}",
        "{}",
        "{\"answer\": [1, 2]}",
        "[1] is a citation",
        "<function=unknown>\n</function>",
        "a < b and <func",
    ];
    for text in json {
        check(calls(ToolFormat::Json), text, "", text, &[]);
        check(calls(ToolFormat::Mistral), text, "", text, &[]);
    }
    let other = [
        (ToolFormat::QwenXml, "<tool_call>\n<function>\n</function>\n</tool_call>"),
        (ToolFormat::Glm, "<tool_call>a b</tool_call>"),
        (ToolFormat::MiniCpm5, "<function name=now and no end"),
        (ToolFormat::MiniMax, "<minimax:tool_call>text</minimax:tool_call>"),
        (ToolFormat::Gemma4, "<|tool_call>text<tool_call|>"),
        (ToolFormat::Mistral, "[TOOL_CALLS]just words, no call"),
        (ToolFormat::Llama3, "<|python_tag|>print(1 + 1)"),
        (ToolFormat::DeepSeek, "<｜tool▁calls▁begin｜>text<｜tool▁calls▁end｜>"),
        (ToolFormat::KimiK2, "<|tool_calls_section_begin|>text<|tool_calls_section_end|>"),
        (ToolFormat::KimiK3, "<|open|>tools<|sep|>text<|close|>tools<|sep|>"),
        (ToolFormat::Pythonic, "<|tool_call_start|>[no call]<|tool_call_end|>"),
        (ToolFormat::PythonicList, "[unknown(a=1)]"),
    ];
    for (format, text) in other {
        check(calls(format), text, "", text, &[]);
    }
}

/// A call that was announced and then breaks has no end, and its markup is text.
#[test]
fn a_call_that_breaks_on_the_way_is_text_too() {
    let broken = [
        (ToolFormat::Json, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": }}</tool_call>"),
        (ToolFormat::QwenXml, "<tool_call><function=now>what?</function></tool_call>"),
        (ToolFormat::Llama3, "<|python_tag|>now(1 + 1)"),
    ];
    for (format, text) in broken {
        let answer = whole(&calls(format), &options(), text);
        assert_eq!(answer.text, text);
        assert!(answer.calls.iter().all(|call| !call.ended));
    }
}

#[test]
fn qwen_xml_calls() {
    let format = calls(ToolFormat::QwenXml);
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";
    check(format, call, "", "", &[("get_weather", paris())]);
    let both = [("get_weather", paris()), ("now", json!({}))];
    let slips = [
        // The outer tags are missing, or hold two calls, or are all that closes.
        "<function=get_weather><parameter=city>Paris</parameter><parameter=days>2</parameter></function></tool_call><function=now></function>",
        "<tool_call><function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>2</parameter></function>\n<function=now>\n</function></tool_call>",
        "<tool_call><function=get_weather><parameter=city>Paris</parameter><parameter=days>2</parameter></tool_call><tool_call><function=now>",
        // The value's closing tag is missing.
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        // JSON instead of tags.
        "<tool_call><function=get_weather>{\"city\": \"Paris\", \"days\": 2}</function></tool_call><tool_call>{\"name\": \"now\"}</tool_call>",
    ];
    for slip in slips {
        check(format, slip, "", "", &both);
    }
}

#[test]
fn values_in_tags_have_the_types_of_the_schema() {
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\n5\n</parameter>\n<parameter=days>\n05\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=hours>\n[1,\n 2]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=more>\n7\n</parameter>\n</function>\n</tool_call>";
    let arguments =
        json!({"city": "5", "days": 5, "metric": true, "hours": [1, 2], "note": null, "more": "7"});
    check(calls(ToolFormat::QwenXml), call, "", "", &[("get_weather", arguments)]);
    let call = "<tool_call><function=get_weather><parameter=note>nullable</parameter></function></tool_call>";
    check(
        calls(ToolFormat::QwenXml),
        call,
        "",
        "",
        &[("get_weather", json!({"note": "nullable"}))],
    );
}

#[test]
fn a_value_may_hold_what_closes_it() {
    let text = "\n<a>\n</parameter>\n  \"x\" \\ </function> <parameter=q>\n\n";
    let call = format!(
        "<tool_call>\n<function=write-file>\n<parameter=path>\na.xml\n</parameter>\n<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call>"
    );
    let arguments = json!({"path": "a.xml", "text": text});
    check(calls(ToolFormat::QwenXml), &call, "", "", &[("write-file", arguments)]);
}

#[test]
fn seed_calls() {
    let call = "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>";
    let format =
        AnswerFormat { reasoning: Some(ReasoningFormat::Seed), ..calls(ToolFormat::SeedXml) };
    let text = format!("<seed:think>hm</seed:think>{call}");
    check(format, &text, "hm", "", &[("get_weather", paris())]);
}

#[test]
fn glm_calls() {
    let format = calls(ToolFormat::Glm);
    let calls = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now</tool_call>";
    check(format, calls, "", "", &[("get_weather", paris()), ("now", json!({}))]);
    let other = "<tool_call>other<arg_key>a</arg_key><arg_value>[1]</arg_value><arg_key>b</arg_key><arg_value> text </arg_value></tool_call>";
    check(format, other, "", "", &[("other", json!({"a": [1], "b": " text "}))]);
    let json = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call><tool_call>now {\"a\": 1}</tool_call>";
    check(format, json, "", "", &[("now", json!({})), ("now", json!({"a": 1}))]);
}

#[test]
fn longcat_calls() {
    let call = "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Paris</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key><longcat_arg_value>2</longcat_arg_value></longcat_tool_call>";
    check(calls(ToolFormat::Longcat), call, "", "", &[("get_weather", paris())]);
    let json = "<longcat_tool_call>{\"name\": \"now\", \"arguments\": {}}</longcat_tool_call>";
    check(calls(ToolFormat::Longcat), json, "", "", &[("now", json!({}))]);
}

#[test]
fn minicpm_calls() {
    let format = calls(ToolFormat::MiniCpm5);
    let call = "<function name=\"get_weather\"><param name=\"city\">Paris</param><param name='days'>2</param></function>\n<function name=now></function>";
    check(format, call, "", "", &[("get_weather", paris()), ("now", json!({}))]);
    let text = "<b>\n & </param> ]]> \"";
    let call = format!(
        "<function name=\"write-file\"><param name=\"path\"> a </param><param name=\"text\"><![CDATA[{text}]]></param></function>"
    );
    check(format, &call, "", "", &[("write-file", json!({"path": "a", "text": text}))]);
}

#[test]
fn minimax_muse_and_deepseek_markup_calls() {
    let tags = |prefix: &str, block: &str| {
        format!(
            "<{prefix}{block}>\n<{prefix}invoke name=\"get_weather\">\n<{prefix}parameter name=\"city\">Paris</{prefix}parameter>\n<{prefix}parameter name=\"days\">2</{prefix}parameter>\n</{prefix}invoke>\n<{prefix}invoke name=\"now\">\n</{prefix}invoke>\n</{prefix}{block}>"
        )
    };
    let both = [("get_weather", paris()), ("now", json!({}))];
    let minimax = tags("", "invokes").replace("invokes>", "minimax:tool_call>");
    check(calls(ToolFormat::MiniMax), &minimax, "", "", &both);
    check(calls(ToolFormat::MuseSpark), &tags("atem:", "function_calls"), "", "", &both);
    for block in ["function_calls", "tool_calls"] {
        let dsml = tags("｜DSML｜", block).replace("\"city\"", "\"city\" string=\"true\"");
        let dsml = dsml.replace("\"days\"", "\"days\" string=\"false\"");
        check(calls(ToolFormat::DeepSeekMarkup), &dsml, "", "", &both);
    }
}

#[test]
fn deepseek_calls() {
    let format = calls(ToolFormat::DeepSeek);
    let both = [("get_weather", paris()), ("now", json!({}))];
    let json = "{\"city\": \"Paris\", \"days\": 2}";
    let new = format!(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{json}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    let old = format!(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{json}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    for text in [new, old] {
        check(format, &text, "", "", &both);
        let text = format!("<think>a</think>b\n{}", text.replace("<｜tool▁calls▁begin｜>", ""));
        check(format, &text, "a", "b", &both);
    }
}

#[test]
fn kimi_k2_calls_have_their_own_ids() {
    let text = "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let both = [("get_weather", paris()), ("now", json!({}))];
    let answer = check(calls(ToolFormat::KimiK2), text, "", "I look.", &both);
    let ids: Vec<&str> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["functions.get_weather:3", "functions.now:1"]);
}

#[test]
fn kimi_k3_calls() {
    let format = AnswerFormat {
        tools: Some(ToolFormat::KimiK3),
        reasoning: Some(ReasoningFormat::KimiK3),
        messages: None,
    };
    let text = "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"now\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\": 1}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";
    let both = [("get_weather", paris()), ("now", json!({"a": 1}))];
    check(format, text, "hm", "I look.", &both);
}

#[test]
fn gemma_calls() {
    let format =
        AnswerFormat { reasoning: Some(ReasoningFormat::Gemma4), ..calls(ToolFormat::Gemma4) };
    let text = "<|channel>thought\nhm<channel|>I look.<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>";
    check(format, text, "hm", "I look.", &[("get_weather", paris()), ("now", json!({}))]);
    let nested = "<|tool_call>call:write-file{path:<|\"|>a \"b\" {c}\\n\n<|\"|>,more:{list:[1,true,null,<|\"|>x<|\"|>],<|\"|>k<|\"|>:{}}}<tool_call|>";
    let arguments =
        json!({"path": "a \"b\" {c}\\n\n", "more": {"list": [1, true, null, "x"], "k": {}}});
    check(format, nested, "", "", &[("write-file", arguments)]);
    let unclosed = "<|tool_call>call:now{a:[1<tool_call|>";
    check(format, unclosed, "", "", &[("now", json!({"a": [1]}))]);
    let function = "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call><start_function_call>call:now{mode:very fast}<end_function_call>";
    let both = [("get_weather", paris()), ("now", json!({"mode": "very fast"}))];
    check(calls(ToolFormat::FunctionGemma), function, "", "", &both);
}

#[test]
fn mistral_calls() {
    let format =
        AnswerFormat { reasoning: Some(ReasoningFormat::Mistral), ..calls(ToolFormat::Mistral) };
    let json = "{\"city\": \"Paris\", \"days\": 2}";
    let both = [("get_weather", paris()), ("now", json!({}))];
    let ways = [
        format!("[TOOL_CALLS]get_weather[ARGS]{json}[TOOL_CALLS]now[ARGS]{{}}"),
        format!("[TOOL_CALLS]get_weather[ARGS]{json}now[ARGS]{{}}"),
        format!("[TOOL_CALLS]get_weather{json}[TOOL_CALLS]now{{}}"),
        format!(
            "[TOOL_CALLS][{{\"name\": \"get_weather\", \"arguments\": {json}}}, {{\"name\": \"now\", \"arguments\": \"{{}}\"}}]"
        ),
        format!(
            "[{{\"name\": \"get_weather\", \"arguments\": {json}}}, {{\"name\": \"now\", \"arguments\": {{}}}}]"
        ),
    ];
    for text in ways {
        let answer = check(format, &text, "", "", &both);
        let nine = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(answer.calls.iter().all(|call| nine(&call.id)), "{answer:?}");
        assert_ne!(answer.calls[0].id, answer.calls[1].id);
    }
    let text =
        format!("[THINK]hm[/THINK]I look. [TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{json}");
    let answer = check(format, &text, "hm", "I look.", &both[..1]);
    assert_eq!(answer.calls[0].id, "abcdefghi");
}

#[test]
fn llama_calls() {
    let format = calls(ToolFormat::Llama3);
    let both = [("get_weather", paris()), ("now", json!({}))];
    let json = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 2}}";
    let ways = [
        format!("{json}; {{\"name\": \"now\", \"parameters\": {{}}}}"),
        format!("<|python_tag|>{json};{{\"type\": \"function\", \"name\": \"now\", \"parameters\": {{}}}}"),
        "<function=get_weather>{\"city\": \"Paris\", \"days\": 2}</function><function=now>{}</function>".to_owned(),
    ];
    for text in ways {
        check(format, &text, "", "", &both);
    }
    check(format, "<|python_tag|>get_weather.call(city=\"Paris\", days=2)", "", "", &both[..1]);
    check(format, &format!("Like {json}"), "", &format!("Like {json}"), &[]);
}

#[test]
fn pythonic_calls() {
    let both = [("get_weather", paris()), ("now", json!({}))];
    let list = "[get_weather(city='Paris', days=2), now()]";
    check(
        calls(ToolFormat::Pythonic),
        &format!("Hm. <|tool_call_start|>{list}<|tool_call_end|>"),
        "",
        "Hm.",
        &both,
    );
    check(calls(ToolFormat::PythonicList), list, "", "", &both);
    check(
        calls(ToolFormat::PythonicList),
        &format!("<|python_start|>{list}<|python_end|>"),
        "",
        "",
        &both,
    );
    let lines = "<function_calls>\nget_weather(city=\"Paris\", days=2)\nnow()\n</function_calls>";
    check(calls(ToolFormat::PythonicLines), lines, "", "", &both);
    let values = "<|tool_call_start|>[t.x(a={'k': [True, (1, -2.5)]}, b=\"\"\"x\n\"y\" \\\" z\"\"\", c='')]<|tool_call_end|>";
    let arguments = json!({"a": {"k": [true, [1, -2.5]]}, "b": "x\n\"y\" \" z", "c": ""});
    check(calls(ToolFormat::Pythonic), values, "", "", &[("t.x", arguments)]);
}

#[test]
fn lists_of_json_calls_between_markers() {
    let both = [("get_weather", paris()), ("now", json!({}))];
    let list = "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]";
    let ways = [
        (ToolFormat::JsonList, format!("<tool_calls>{list}</tool_calls>")),
        (ToolFormat::Nemotron, format!("<TOOLCALL>{list}</TOOLCALL>")),
        (ToolFormat::Granite, format!("<|tool_call|>{list}")),
        (ToolFormat::Granite, format!("<|tool_call|>{list}<|/tool_call|>")),
    ];
    for (format, text) in ways {
        check(calls(format), &format!("I look.\n{text}\n"), "", "I look.", &both);
    }
    let cohere = "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>";
    let format =
        AnswerFormat { reasoning: Some(ReasoningFormat::Cohere), ..calls(ToolFormat::Cohere) };
    let answer = check(format, cohere, "hm", "", &[("now", json!({}))]);
    assert_eq!(answer.calls[0].id, "0");
}

fn harmony() -> AnswerFormat {
    AnswerFormat {
        tools: Some(ToolFormat::Harmony),
        reasoning: None,
        messages: Some(MessageFormat::Harmony),
    }
}

#[track_caller]
fn check_messages(
    format: AnswerFormat,
    text: &str,
    reasoning: &str,
    visible: &str,
    calls: &[(&str, serde_json::Value)],
) {
    let options = ParserOptions { beginning: Beginning::Head, ..options() };
    let answer = whole(&format, &options, text);
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), (reasoning, visible));
    let called: Vec<_> = answer
        .calls
        .iter()
        .map(|call| (call.name.as_str(), serde_json::from_str(&call.arguments).unwrap()))
        .collect();
    assert_eq!(called, calls);
}

#[test]
fn harmony_messages() {
    let call = [("get_weather", paris())];
    let json = "{\"city\": \"Paris\", \"days\": 2}";
    let check = |text: &str, reasoning, visible, calls: &[(&str, serde_json::Value)]| {
        check_messages(harmony(), text, reasoning, visible, calls);
    };
    check("<|channel|>final<|message|>Hi.\n", "", "Hi.\n", &[]);
    check(
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>",
        "hm",
        "Hi.",
        &[],
    );
    for head in [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
    ] {
        check(&format!("{head}{json}<|call|>"), "", "", &call);
        check(&format!("{head}{json}"), "", "", &call);
        check(
            &format!(
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{head}{json}<|end|><|start|>assistant<|channel|>analysis<|message|>b"
            ),
            "a\n\nb",
            "I look.",
            &call,
        );
    }
    check(
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>no object<|call|>",
        "",
        "no object",
        &[],
    );
    check("Hello <|x|>", "", "Hello <|x|>", &[]);
    check("<|channel|>fin", "", "", &[]);
}

#[test]
fn muse_spark_messages() {
    let format = AnswerFormat {
        tools: Some(ToolFormat::MuseSpark),
        reasoning: None,
        messages: Some(MessageFormat::MuseSpark),
    };
    let text = " to=self<|message|>hm<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>";
    check_messages(format, text, "hm", "Hi.", &[("now", json!({}))]);
}

#[test]
fn without_tools_markup_is_text() {
    for tools in ToolFormat::ALL {
        let format = AnswerFormat { tools: Some(tools), ..AnswerFormat::default() };
        let text = "<tool_call>{\"name\": \"now\"}</tool_call>\n<|tool_call>call:now{} [TOOL_CALLS]now[ARGS]{} \n";
        let options = ParserOptions::default();
        assert_eq!(whole(&format, &options, text).text, text, "{tools:?}");
    }
}

#[test]
fn prose_is_said_at_once() {
    for tools in ToolFormat::ALL.into_iter().filter(|tools| *tools != ToolFormat::Harmony) {
        let mut parser = AnswerParser::new(&calls(tools), options());
        let mut said = String::new();
        for word in ["Hello", " a", " <", " b", " [", " c"] {
            let parts = parser.push(word);
            said.push_str(&folded(&parts).text);
        }
        assert_eq!(said, "Hello a < b [ c", "{tools:?}");
    }
}

#[test]
fn arguments_stream_while_they_come() {
    let ways = [
        (
            ToolFormat::Json,
            "<tool_call>{\"name\": \"write-file\", \"arguments\": {\"text\": \"",
            "\"}}</tool_call>",
        ),
        (
            ToolFormat::QwenXml,
            "<tool_call>\n<function=write-file>\n<parameter=text>\n",
            "\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            ToolFormat::Glm,
            "<tool_call>write-file\n<arg_key>text</arg_key>\n<arg_value>",
            "</arg_value></tool_call>",
        ),
        (ToolFormat::Gemma4, "<|tool_call>call:write-file{text:<|\"|>", "<|\"|>}<tool_call|>"),
        (ToolFormat::Mistral, "[TOOL_CALLS]write-file[ARGS]{\"text\": \"", "\"}"),
        (ToolFormat::Pythonic, "<|tool_call_start|>[write-file(text=\"", "\")]<|tool_call_end|>"),
        (
            ToolFormat::KimiK2,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.write-file:0<|tool_call_argument_begin|>{\"text\": \"",
            "\"}<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ];
    for (tools, before, after) in ways {
        let mut parser = AnswerParser::new(&calls(tools), options());
        let mut answer: FoldedAnswer = parser.push(before).into_iter().collect();
        assert_eq!(answer.calls[0].name, "write-file", "{tools:?}");
        answer.extend(parser.push("zero "));
        for word in ["one", " two", " three"] {
            let parts = parser.push(word);
            let json = AnswerPart::ToolCallArguments { index: 0, json: word.to_owned() };
            assert_eq!(parts, [json], "{tools:?}");
            answer.extend(parts);
        }
        answer.extend(parser.push(after));
        answer.extend(parser.finish(TextEnd::Complete));
        assert_eq!(answer.calls[0].arguments, "{\"text\": \"zero one two three\"}", "{tools:?}");
        assert!(answer.calls[0].ended && answer.text.is_empty());
    }
}

#[test]
fn ids_are_of_the_request() {
    let text =
        "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>";
    let ids = |seed: &str| -> Vec<String> {
        let options = ParserOptions { id_seed: seed.to_owned(), ..options() };
        let answer = whole(&calls(ToolFormat::Json), &options, text);
        answer.calls.into_iter().map(|call| call.id).collect()
    };
    let (one, other) = (ids("one"), ids("other"));
    assert!(one[0].starts_with("call_") && one[0].len() == 29);
    assert!(one[0] != one[1] && one[0] != other[0]);
    assert_eq!(one, ids("one"));
}

#[test]
fn an_id_that_the_model_gives_twice_is_given_once() {
    let call = |id: &str| {
        format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>")
    };
    let section = |ids: [&str; 3]| {
        let given = ids.map(call).concat();
        format!("<|tool_calls_section_begin|>{given}<|tool_calls_section_end|>")
    };
    for (given, told) in [
        (["functions.now:3", "functions.now:4", "functions.now:5"], [3, 4, 5]),
        (["functions.now:0", "functions.now:0", "functions.now:1"], [0, 1, 2]),
        (["functions.now:1", "functions.now:1", "functions.now:1"], [1, 2, 3]),
    ] {
        let answer = whole(&calls(ToolFormat::KimiK2), &options(), &section(given));
        let ids: Vec<String> = answer.calls.into_iter().map(|call| call.id).collect();
        assert_eq!(ids, told.map(|number| format!("functions.now:{number}")), "{given:?}");
    }
}
