"""Asks for vectors through the openai SDK: texts, tokens, numbers, base64, cut ones, and what is refused.

Usage: embeddings.py URL TEXTS. TEXTS are token ids, as JSON. Prints one JSON object.
"""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
TEXTS = json.loads(sys.argv[2])


def vectors(answer):
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


def embed(texts, **fields):
    answer = client.embeddings.create(model="default", input=texts, **fields)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens
    return dict(vectors=vectors(answer), tokens=answer.usage.prompt_tokens)


def refused(call):
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param]


chat = dict(model="default", messages=[{"role": "user", "content": "Hello!"}])
told = dict(
    # The SDK asks for base64 unless it is told otherwise.
    base64=embed(TEXTS),
    floats=embed(TEXTS, encoding_format="float"),
    cut=embed(TEXTS, dimensions=6),
    alone=[embed(text)["vectors"][0] for text in TEXTS],
    text=embed("Hello, world!"),
    texts=embed(["a", "Hello, world!"]),
    chat=refused(lambda: client.chat.completions.create(**chat)),
    completion=refused(lambda: client.completions.create(model="default", prompt="Hello!")),
    too_many=refused(lambda: embed(TEXTS, dimensions=33)),
    models=[model.model_dump() for model in client.models.list()],
)
print(json.dumps(told))
