"""Gemma 3 270M (not tuned for chats) through mlx-lm: greedy continuations, short and past its window."""

from pathlib import Path

import checkpoint
import real
from mlx_lm import load

TOKENS = 64
WINDOW = 512


def timetable(lines):
    """A text that goes on in one way only, so that its end depends on what is far away."""
    ports = ["Amber", "Birch", "Cedar", "Delta", "Ember", "Fjord", "Grove", "Heath"]
    rows = [
        f"Ferry {number}: leaves {ports[number % 8]} for {ports[(number + 3) % 8]} with {number * 7} boxes.\n"
        for number in range(1, lines + 1)
    ]
    return "The timetable of the island ferries\n\n" + "".join(rows)


PROMPTS = [
    "The three primary colours are",
    "def reverse(text):\n    \"\"\"Returns the text backwards.\"\"\"\n",
    "Les étoiles — 星 — are",
    # The window fills while the answer is written, and long before.
    timetable(26),
    timetable(40),
]


def generate(model_directory: Path, directory: Path, versions):
    model, tokenizer = load(str(model_directory))
    dtype = str(model.model.embed_tokens.weight.dtype).removeprefix("mlx.core.")
    described = [describe(model, tokenizer, text) for text in PROMPTS]
    lengths = [len(case["prompt"]) for case in described]
    assert any(WINDOW - TOKENS < length < WINDOW for length in lengths), lengths
    assert any(length > WINDOW for length in lengths), lengths
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(
        directory / "cases.json",
        dict(model="gemma-3-270m", dtype=dtype, versions=versions, cases=described),
    )


def describe(model, tokenizer, text):
    return dict(text=text, **real.answered(model, tokenizer, tokenizer.encode(text), TOKENS, 0.005, "answer"))
