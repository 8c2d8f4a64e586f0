"""Some turns of Claude Code, as it sends them: its system prompt in blocks, of which the first is a line about
accounting that is new in every request; tools with large schemas; reminders; calls and their results.

Usage: claude_code.py URL, where URL ends in /v1. Prints one JSON object.
"""

import json
import sys

import anthropic
import openai

# The client's own defaults: it retries, it names its betas, and it asks `?beta=true`.
client = anthropic.Anthropic(base_url=sys.argv[1].removesuffix("/v1"), auth_token="none")
BETAS = ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"]
CACHED = {"type": "ephemeral", "ttl": "1h"}
RULES = "You help with software: read before you write, keep answers short, and never guess. " * 25


def text(content, **more):
    return {"type": "text", "text": content, **more}


def system(cch):
    line = f"x-anthropic-billing-header: cc_version=2.1.37.{cch[:3]}; cc_entrypoint=cli; cch={cch};"
    return [
        text(line),
        text("You are Claude Code, Anthropic's official CLI for Claude.", cache_control=CACHED),
        text(RULES, cache_control=CACHED),
    ]


def tool(name, properties, required, **more):
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name}: " + "use it with care. " * 8, "input_schema": schema, **more}


PATH = {"type": "string", "description": "The absolute path to the file"}
TODO = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "minLength": 1},
        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
    },
    "required": ["content", "status"],
    "additionalProperties": False,
}
TOOLS = [
    tool("Bash", {"command": {"type": "string"}, "timeout": {"type": "number"}}, ["command"]),
    tool("Read", {"file_path": PATH, "offset": {"type": "integer", "minimum": 0}}, ["file_path"]),
    tool("TodoWrite", {"todos": {"type": "array", "items": TODO}}, ["todos"]),
    tool(
        "mcp__search__query",
        {"query": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}},
        [],
        cache_control=CACHED,
        strict=True,
        eager_input_streaming=True,
    ),
]
FIRST = [
    {
        "role": "user",
        "content": [
            text("<system-reminder>\nToday's date is 2026-11-30.\n</system-reminder>\n"),
            text("What is in notes.txt?", cache_control={"type": "ephemeral"}),
        ],
    }
]
LATER = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I read it.", "signature": "unsigned"},
            {"type": "redacted_thinking", "data": "AAAA"},
            text("I read the file."),
            {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"file_path": "/notes.txt"}},
            {"type": "tool_use", "id": "toolu_02", "name": "Bash", "input": {"command": "wc /notes.txt"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_01", "content": [text("1\tbuy milk")]},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_02",
                "is_error": True,
                "content": "<tool_use_error>no such command</tool_use_error>",
                "cache_control": {"type": "ephemeral"},
            },
            text("<system-reminder>\nThe todo list is empty.\n</system-reminder>"),
        ],
    },
]


def options(cch, messages):
    return dict(
        model="claude-sonnet-4-6",
        system=system(cch),
        tools=TOOLS,
        messages=messages,
        thinking={"type": "enabled", "budget_tokens": 31999},
        betas=BETAS,
        extra_body={"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    )


def asked(cch, messages):
    with client.beta.messages.stream(
        **options(cch, messages), max_tokens=8, metadata={"user_id": "user_0_account__session_1"}
    ) as stream:
        usage = stream.get_final_message().usage
    counted = client.beta.messages.count_tokens(**options(cch, messages))
    return {
        "cached": usage.cache_read_input_tokens,
        "created": usage.cache_creation_input_tokens,
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "counted": counted.input_tokens,
    }


def translated(cch):
    """The first turn as a translator to OpenAI's API sends it."""
    chat = openai.OpenAI(base_url=sys.argv[1], api_key="none")
    blocks = [text(block["text"]) for block in system(cch)]
    messages = [{"role": "system", "content": blocks}, {"role": "user", "content": "What is in notes.txt?"}]
    usage = chat.chat.completions.create(model="default", messages=messages, max_tokens=8).usage
    return {"cached": usage.prompt_tokens_details.cached_tokens, "input": usage.prompt_tokens}


# The quota check of its start, a title, a conversation, and a sub-agent beside it.
client.beta.messages.create(
    model="claude-haiku-4-5-20251001", max_tokens=1, messages=[{"role": "user", "content": "quota"}], betas=BETAS
)
OTHER = [{"role": "user", "content": [text("Say something else.")]}]
print(
    json.dumps(
        {
            "first": asked("0aa41", FIRST),
            "again": asked("f31bc", FIRST),
            "later": asked("7c0de", FIRST + LATER),
            "other": asked("91e0f", OTHER),
            "translated": [translated("11111"), translated("2222a")],
        }
    )
)
