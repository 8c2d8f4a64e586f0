"""SmolLM2-135M-Instruct through mlx-lm: chat prompts, greedy tokens, and how near they were to ties."""

from pathlib import Path

import checkpoint
import real
from mlx_lm import load

TOKENS = 32
# Their tokens are at least 0.01 from a tie, far beyond what another BLAS changes in f32.
CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You are a patient teacher."},
        {"role": "user", "content": "How do vaccines work?"},
    ],
    [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "2 + 2 is 4."},
        {"role": "user", "content": "Explain why, step by step."},
    ],
    [{"role": "user", "content": "Write a Python function that reverses a string."}],
    [{"role": "user", "content": "Tell me a short story about a fox — with a café in it."}],
]


def generate(model_directory: Path, directory: Path, versions):
    model, tokenizer = load(str(model_directory))
    dtype = str(model.model.embed_tokens.weight.dtype).removeprefix("mlx.core.")
    described = [describe(model, tokenizer, messages) for messages in CONVERSATIONS]
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(
        directory / "cases.json",
        dict(model="SmolLM2-135M-Instruct", dtype=dtype, versions=versions, cases=described),
    )


def describe(model, tokenizer, messages):
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(rendered, add_special_tokens=False)
    answer = real.answered(model, tokenizer, prompt, TOKENS, 0.01, "text")
    return dict(messages=messages, rendered=rendered, **answer)
