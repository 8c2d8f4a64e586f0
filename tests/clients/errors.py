"""What the `openai` SDK makes of our refusals: the exception's type, and what it tells.

Usage: errors.py URL. Prints one JSON object: {name: [exception, status, param, code]}.
"""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
HELLO = [{"role": "user", "content": "Hello"}]
REQUESTS = {
    "no messages": dict(messages=[]),
    "two answers": dict(messages=HELLO, n=2),
    "negative temperature": dict(messages=HELLO, temperature=-1),
    "no tokens": dict(messages=HELLO, max_tokens=0),
    "unknown model": dict(messages=HELLO, model="gpt-4o"),
    "too long": dict(messages=[{"role": "user", "content": "word " * 20000}]),
}


def outcome(request):
    try:
        client.chat.completions.create(**{"model": "default", **request})
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.param, error.code]
    return None


print(json.dumps({name: outcome(request) for name, request in REQUESTS.items()}))
