"""Eight `openai` SDK clients stream at once; then each prompt is asked again, alone and whole.

Usage: eight_streams.py URL. Reads one line from stdin before the second round, so that the caller can
look at the server while all eight are live. Prints one JSON object a line: {"streaming": N} when the
Nth client heard its first text, then {"together": [...], "alone": [...]}.
"""

import json
import sys
import threading

from openai import OpenAI

PROMPTS = [
    "Count from one to thirty in words.",
    "Tell me a story about a fox.",
    "Explain how rain forms.",
    "List ten animals and their sounds.",
    "Write a letter to a friend about summer.",
    "What is the capital of France, and what can one see there?",
    "Describe how to bake bread, step by step.",
    "Why is the sky blue?",
]
TOKENS = 72

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
printing = threading.Lock()
all_stream = threading.Barrier(len(PROMPTS))
together = [None] * len(PROMPTS)


def say(value):
    with printing:
        print(json.dumps(value), flush=True)


def options(prompt):
    messages = [{"role": "user", "content": prompt}]
    return dict(model="default", messages=messages, max_tokens=TOKENS, temperature=0)


def reply(text, finish, usage):
    return {"text": text, "finish": finish, "completion_tokens": usage.completion_tokens}


def stream(index):
    text, finish, usage, heard = "", None, None, False
    chunks = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **options(PROMPTS[index]))
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        if text and not heard:
            heard = True
            say({"streaming": all_stream.wait()})
    together[index] = reply(text, finish, usage)


threads = [threading.Thread(target=stream, args=(index,)) for index in range(len(PROMPTS))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdin.readline()
alone = []
for prompt in PROMPTS:
    answer = client.chat.completions.create(**options(prompt))
    choice = answer.choices[0]
    alone.append(reply(choice.message.content, choice.finish_reason, answer.usage))
say({"together": together, "alone": alone})
