"""What the `openai` SDK makes of `/v1/responses` and of the smaller routes.

Usage: openai_responses.py URL. Prints one JSON object.
"""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
OPTIONS = dict(model="default", temperature=0, max_output_tokens=16, instructions="You answer in one sentence.")
QUESTION = "Which color is the sky?"


def told(response):
    return {
        "status": response.status,
        "items": [item.type for item in response.output],
        "text": response.output_text,
        "input": response.usage.input_tokens,
        "output": response.usage.output_tokens,
    }


def streamed(**options):
    with client.responses.stream(**options) as stream:
        events = list(stream)
    # `get_final_response` knows complete responses alone, and these may be cut off.
    return {**told(events[-1].response), "events": [event.type for event in events]}


def refused(call):
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.param, error.code]
    return None


first = client.responses.create(**OPTIONS, input=QUESTION)
second = client.responses.create(**OPTIONS, input="And the sea?", previous_response_id=first.id)
items = [
    {"role": "user", "content": QUESTION},
    *[item.model_dump(exclude_none=True) for item in first.output],
    {"role": "user", "content": "And the sea?"},
]
by_hand = client.responses.create(**OPTIONS, input=items, store=False)
found = client.responses.retrieve(first.id)
client.responses.delete(first.id)
print(
    json.dumps(
        {
            "whole": told(first),
            "streamed": streamed(**OPTIONS, input=QUESTION),
            "found": told(found),
            "second": told(second),
            "by hand": told(by_hand),
            "deleted": refused(lambda: client.responses.retrieve(first.id)),
            "past is gone": refused(
                lambda: client.responses.create(**OPTIONS, input="x", previous_response_id=first.id)
            ),
            "embeddings": refused(lambda: client.embeddings.create(model="default", input="x")),
            "models": [model.id for model in client.models.list()],
            "model": client.models.retrieve(client.models.list().data[0].id).id,
        }
    )
)
