"""What the `openai` and `anthropic` SDKs make of streams that somebody ends from outside.

Usage: cancelled.py URL. Each stream is cancelled by its id once it is told, and what it came to is held
against the SDK's own types, as strict clients do. Prints one JSON object: {api: how it ended}.
"""

import json
import sys
import urllib.request

import anthropic
import openai
from anthropic.types import Message
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

url = sys.argv[1]
ours = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
theirs = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "Tell me a long story."}]


def cancel(name):
    request = urllib.request.Request(f"{url}/requests/{name}", method="DELETE")
    assert json.load(urllib.request.urlopen(request))["cancelled"]


def chat():
    options = dict(model="default", messages=MESSAGES, max_tokens=4000)
    with ours.chat.completions.stream(**options, stream_options={"include_usage": True}) as stream:
        told = False
        for event in stream:
            if event.type == "content.delta" and event.snapshot and not told:
                told = True
                cancel(stream.current_completion_snapshot.id)
        # The SDK's helper hands out whole answers alone, and has an error for each word that says otherwise.
        try:
            completion = stream.get_final_completion()
        except openai.ContentFilterFinishReasonError as error:
            completion = error.completion
    completion = ChatCompletion.model_validate(completion.model_dump())
    choice = completion.choices[0]
    return [choice.finish_reason, choice.message.content != "", completion.usage.completion_tokens > 0]


def completion():
    stream = ours.completions.create(model="default", prompt="Once upon a time", max_tokens=4000, stream=True)
    told, text, last = False, "", None
    for chunk in stream:
        if not told:
            told = True
            cancel(chunk.id)
        text += chunk.choices[0].text
        last = chunk
    last = Completion.model_validate(last.model_dump())
    return [last.choices[0].finish_reason, text != ""]


def message():
    options = dict(model="claude-anything", messages=MESSAGES, max_tokens=4000)
    with theirs.messages.stream(**options) as stream:
        told = False
        for event in stream:
            if event.type == "text" and not told:
                told = True
                cancel(stream.current_message_snapshot.id)
        final = Message.model_validate(stream.get_final_message().model_dump())
    return [final.stop_reason, final.content[0].text != "", final.stop_details.explanation]


def response():
    events = []
    with ours.responses.stream(model="default", input=MESSAGES, max_output_tokens=4000) as stream:
        told = False
        for event in stream:
            if event.type == "response.output_text.delta" and not told:
                told = True
                cancel(events[0].response.id)
            events.append(event)
    final = Response.model_validate(events[-1].response.model_dump())
    return [events[-1].type, final.status, final.incomplete_details.reason, final.output_text != ""]


print(json.dumps({"chat": chat(), "completion": completion(), "message": message(), "response": response()}))
