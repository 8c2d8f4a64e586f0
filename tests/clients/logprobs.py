"""Asks for log-probabilities through the openai SDK, whole and streamed, in both APIs.

Usage: logprobs.py URL. Prints one JSON object: {api: {"whole" | "streamed": what was heard}}.
"""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
CHAT = dict(
    model="default",
    messages=[{"role": "user", "content": "Name three colours, and say café."}],
    max_tokens=16,
    logprobs=True,
    top_logprobs=3,
    logit_bias={"5": -1},
    frequency_penalty=0.2,
)
COMPLETION = dict(model="default", prompt="Once upon a time", max_tokens=16, logprobs=3)


def told_chat(text, entries):
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    spelled = b"".join(bytes(entry.bytes) for entry in entries if entry.bytes is not None)
    return dict(
        text=text,
        joined=spelled.decode(errors="replace"),
        tokens=[[entry.token, entry.logprob] for entry in entries],
        likeliest=[[entry.top_logprobs[0].token, entry.top_logprobs[0].logprob] for entry in entries],
    )


def told_completion(text, parts):
    tokens = [token for part in parts for token in part.tokens]
    logprobs = [logprob for part in parts for logprob in part.token_logprobs]
    tops = [top for part in parts for top in part.top_logprobs]
    offsets = [offset for part in parts for offset in part.text_offset]
    assert all(3 <= len(top) <= 4 for top in tops)
    starts = [text[offset:].startswith(token) for offset, token in zip(offsets, tokens)]
    assert all(starts), (text, tokens, offsets)
    best = [max(top.items(), key=lambda item: item[1]) for top in tops]
    pairs = [[token, logprob] for token, logprob in zip(tokens, logprobs)]
    return dict(text=text, joined="".join(tokens), tokens=pairs, likeliest=[list(pair) for pair in best])


def chat():
    (choice,) = client.chat.completions.create(**CHAT).choices
    whole = told_chat(choice.message.content, choice.logprobs.content)
    text, entries = "", []
    for chunk in client.chat.completions.create(**CHAT, stream=True):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        entries += choice.logprobs.content if choice.logprobs else []
    return dict(whole=whole, streamed=told_chat(text, entries))


def completion():
    (choice,) = client.completions.create(**COMPLETION).choices
    whole = told_completion(choice.text, [choice.logprobs])
    chunks = [chunk.choices[0] for chunk in client.completions.create(**COMPLETION, stream=True)]
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs]
    return dict(whole=whole, streamed=told_completion("".join(chunk.text for chunk in chunks), parts))


print(json.dumps(dict(chat=chat(), completion=completion())))
