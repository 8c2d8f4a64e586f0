"""What the `anthropic` SDK makes of `/v1/messages`, streamed and whole, and of our refusals.

Usage: anthropic_messages.py URL, where URL ends in /v1. Prints one JSON object.
"""

import json
import sys

import anthropic

client = anthropic.Anthropic(
    base_url=sys.argv[1].removesuffix("/v1"), api_key="none", max_retries=0
)
# Whatever is called `claude` is the served model.
MODEL = "claude"
HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "Look at the sky.", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "It is blue."}]},
            {"type": "text", "text": "Which color is the sky?"},
        ],
    },
]
OPTIONS = dict(
    model=MODEL,
    max_tokens=16,
    # Not a field of Anthropic's newest models; it is one here.
    extra_body={"temperature": 0},
    system=[{"type": "text", "text": "You answer in one sentence."}],
)


def told(message):
    usage = message.usage
    return {
        "blocks": [block.type for block in message.content],
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "stop_reason": message.stop_reason,
        "stop_sequence": message.stop_sequence,
        "input": usage.input_tokens + (usage.cache_read_input_tokens or 0),
        "output": usage.output_tokens,
    }


def streamed(**options):
    with client.messages.stream(**options) as stream:
        events = [event.type for event in stream]
        return {**told(stream.get_final_message()), "events": events}


def refused(**options):
    try:
        client.messages.create(**{**OPTIONS, "messages": HISTORY, **options})
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body["error"]["type"], bool(error.request_id)]
    return None


whole = client.messages.create(**OPTIONS, messages=HISTORY)
word = told(whole)["text"].split()[2]
print(
    json.dumps(
        {
            "whole": told(whole),
            "streamed": streamed(**OPTIONS, messages=HISTORY),
            "stopped": told(client.messages.create(**OPTIONS, messages=HISTORY, stop_sequences=[word])),
            "stopped streamed": streamed(**OPTIONS, messages=HISTORY, stop_sequences=[word]),
            "word": word,
            "counted": client.messages.count_tokens(
                model=MODEL, messages=HISTORY, system=OPTIONS["system"]
            ).input_tokens,
            "unknown model": refused(model="gpt-4"),
            "image": refused(
                messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
            ),
            "too long": refused(messages=[{"role": "user", "content": "word " * 20000}]),
        }
    )
)
