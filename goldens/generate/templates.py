"""Chat templates of our own, in the styles that models use, as transformers renders them."""

import logging
from pathlib import Path

import jinja2
from checkpoint import write_json
from transformers import PreTrainedTokenizerFast

SOURCES = Path(__file__).parent / "chat_templates"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now> at a place & time",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name, e.g. \"Zürich\""},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "default": 1},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds pages",
        "parameters": {
            "type": "object",
            "properties": {
                "terms": {"type": "array", "items": {"type": "string"}},
                "limit": {"type": ["integer", "null"]},
                "place": {"oneOf": [{"type": "string", "description": "a name"}, {"type": "number"}],
                          "default": "here"},
                "filter": {"type": "object", "properties": {"a": {"type": "string"}, "b": {}},
                           "required": ["a"]},
                "any": {"type": "array"},
            },
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {}}}


def message(role, content, **fields):
    return dict(role=role, content=content, **fields)


def call(name, arguments, **fields):
    return dict(type="function", function=dict(name=name, arguments=arguments), **fields)


PLAIN = [message("user", "  Hello there \n")]
SYSTEM = [message("system", "Be kind.\n"), message("user", "Hi — café 😀?")]
TURNS = [*SYSTEM, message("assistant", " Yes. "), message("user", "And <b>now</b>?")]
TOOL_TURNS = [
    message("system", "Use tools."),
    message("user", "Weather in Zürich?"),
    message("assistant", None, tool_calls=[
        call("get_weather", {"city": "Zürich", "days": 2, "exact": True, "near": None, "at": 1.5},
             id="abcdefghi"),
    ]),
    message("tool", '{"sky": "clear & 20°"}', tool_call_id="abcdefghi"),
]
TWO_CALLS = [
    message("user", "Both?"),
    message("assistant", "Let me look.", reasoning_content="\nI need two calls.\n", tool_calls=[
        call("get_weather", {"city": "Rome"}, id="aaaaaaaaa"),
        call("search", {"terms": ["rome", "<now>"]}, id="bbbbbbbbb"),
    ]),
    message("tool", "sun", tool_call_id="aaaaaaaaa"),
    message("tool", "pages", tool_call_id="bbbbbbbbb"),
    message("assistant", "Sunny.", reasoning="Both came back."),
]
THOUGHTS = [
    message("user", "1+1?"),
    message("assistant", "<think>\nEasy.\n</think>\n\n2"),
    message("user", "2+2?"),
    message("assistant", "<think>\nAlso easy.\n</think>\n\n4"),
]
PARTS = [
    message("system", [dict(type="text", text="See well.")]),
    message("user", [dict(type="image"), dict(type="text", text=" What is it? ")]),
    message("assistant", [dict(type="text", text="A cat.")]),
]
BACKWARDS = [message("assistant", "Me first."), message("user", "No.")]
STRING_ARGUMENTS = [
    message("user", "Go"),
    message("assistant", "", tool_calls=[call("search", '{"terms": ["x"]}', id="abcdefghi")]),
]
STRUCTURED_RESULT = [
    message("user", "Go"),
    message("assistant", "", tool_calls=[call("search", {}, id="abcdefghi")]),
    message("tool", [{"output": "one"}, {"other": [1, "two", True]}], tool_call_id="abcdefghi"),
]
BANANA = [message("user", "Banana man"), message("assistant", "ok")]
PROMPTED = dict(add_generation_prompt=True)
DATED = dict(PROMPTED, date_string="01 Feb 2025")

# For each template: conversations with the tools and variables they are rendered with.
CASES = {
    "chatml": [(PLAIN, None, PROMPTED), (TURNS, None, {}), ([message("user", None)], None, {})],
    "header_blocks_with_tools": [
        (TURNS, None, DATED),
        (TOOL_TURNS, [WEATHER, CLOCK], DATED),
        (TOOL_TURNS, [WEATHER], dict(DATED, tools_in_user_message=False)),
        (PLAIN, None, dict(DATED, builtin_tools=["code_interpreter", "web", "maps"])),
        (PLAIN, None, dict(DATED, custom_tools=[CLOCK])),
        (STRUCTURED_RESULT, None, DATED),
        (TWO_CALLS, None, DATED),
        ([message("system", "Alone")], [CLOCK], DATED),
    ],
    "turns_with_parts": [
        (TURNS, None, PROMPTED), (PARTS, None, {}), (BACKWARDS, None, {}),
        ([message("user", 5)], None, {}),
    ],
    "thinking_with_tools": [
        (TURNS, None, PROMPTED),
        (TOOL_TURNS, [WEATHER, SEARCH], dict(PROMPTED, enable_thinking=False)),
        (TWO_CALLS, [WEATHER, SEARCH], dict(PROMPTED, enable_thinking=True)),
        (THOUGHTS, None, PROMPTED),
        (STRING_ARGUMENTS, [], {}),
        (TOOL_TURNS, None, {}),
    ],
    "instruct_with_ids": [
        (TURNS, None, {}),
        (TOOL_TURNS, [WEATHER, CLOCK], {}),
        (TWO_CALLS, [SEARCH], {}),
        (BACKWARDS, None, {}),
        ([message("user", "a"), message("assistant", "", tool_calls=[call("f", {}, id="short")])], None, {}),
        ([message("user", "a"), message("critic", "b")], None, {}),
        (STRUCTURED_RESULT, None, {}),
    ],
    "argument_tags": [
        (TURNS, None, PROMPTED),
        (TOOL_TURNS, [WEATHER], PROMPTED),
        (TWO_CALLS, [WEATHER, SEARCH], dict(PROMPTED, enable_thinking=False)),
        (STRUCTURED_RESULT, None, {}),
        (PARTS[:2], None, {}),
        (STRING_ARGUMENTS, None, {}),
    ],
    "marked_generation": [(TURNS, None, PROMPTED), (THOUGHTS, None, {})],
    "schema_to_types": [(PLAIN, [WEATHER, SEARCH, CLOCK], {}), (TWO_CALLS, None, {})],
    "whitespace": [(PLAIN, None, {})],
}


def generate(tiny: Path, out: Path):
    """Renders with the special tokens of the tokenizer in `tiny`."""
    logging.disable(logging.WARNING)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    out.mkdir(parents=True, exist_ok=True)
    for name, wanted in CASES.items():
        template = (SOURCES / f"{name}.jinja").read_text(encoding="utf-8")
        cases = [case(tokenizer, template, *each) for each in wanted]
        write(out / f"{name}.json", tokenizer, cases, template=template)
    # Every line is a template of its own, so that a difference is found where it is.
    lines = (SOURCES / "python_manners.jinja").read_text(encoding="utf-8").splitlines()
    cases = [dict(case(tokenizer, line, BANANA, None, dict(content="Banana man")), template=line) for line in lines]
    write(out / "python_manners.json", tokenizer, cases)


def write(path, tokenizer, cases, **fields):
    tokens = dict(bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    write_json(path, dict(fields, **tokens, cases=cases))
    refused = [case.get("error") or case["fails"] for case in cases if "expected" not in case]
    print(f"{path.stem}: {len(cases)} cases, refused {refused}")


def case(tokenizer, template, messages, tools, variables):
    described = dict(messages=messages, tools=tools, variables=variables)
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, tokenize=False, **variables
        )
        return dict(described, expected=text)
    except jinja2.exceptions.UndefinedError as error:
        # The template tripped over the messages; the wording is Jinja's own.
        return dict(described, fails=str(error))
    except jinja2.exceptions.TemplateError as error:
        assert type(error) is jinja2.exceptions.TemplateError, error
        return dict(described, error=str(error))
    except TypeError as error:
        return dict(described, fails=str(error))
