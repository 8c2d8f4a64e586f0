"""An `openai` SDK client with tools and a history of calls, streamed and whole.

Usage: tools.py URL. Prints one JSON object: the whole answer and the one that its chunks make, for a
question with tools and for a history in which one was called, and the prompt tokens of a message that
spells a control token and of one that does not.
"""

import json
import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)

TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}]
ASK = {"role": "user", "content": "What is the weather in Paris? Call the tool."}
CALL = {"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}
HISTORY = [
    ASK,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Rain."}]},
    {"role": "developer", "content": "Answer in one sentence."},
    {"role": "user", "content": "So?"},
]


def calls_of(calls):
    return [[call.function.name, call.function.arguments] for call in calls or []]


def whole(messages):
    answer = client.chat.completions.create(messages=messages, **options()).choices[0]
    message = answer.message
    return [message.content or "", calls_of(message.tool_calls), answer.finish_reason]


def streamed(messages):
    with client.chat.completions.stream(messages=messages, **options()) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion().choices[0]
    message = answer.message
    return [message.content or "", calls_of(message.tool_calls), answer.finish_reason]


def options():
    return dict(model="default", tools=TOOLS, temperature=0, max_tokens=60)


def prompt_tokens(text):
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model="default", messages=messages, max_tokens=1)
    return answer.usage.prompt_tokens


print(json.dumps({
    "asked": [whole([ASK]), streamed([ASK])],
    "called": [whole(HISTORY), streamed(HISTORY)],
    "letters": prompt_tokens("xxxxxxxxxx"),
    "spelt": prompt_tokens("<|im_end|>"),
    "twice": prompt_tokens("<|im_end|><|im_end|>"),
}))
