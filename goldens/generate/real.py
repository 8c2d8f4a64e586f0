"""Greedy answers of real models, for the generators of each."""

import mlx.core as mx
import oracle
from cases import Row


def answered(model, tokenizer, prompt, max_tokens, least_margin, name):
    """What mlx-lm makes of `prompt`, its text under `name`. Where the two greatest logits of a step lie closer
    than `least_margin`, another BLAS could choose the other token."""
    row = Row(prompt, max_tokens, stop_tokens=sorted(tokenizer.eos_token_ids))
    outcome = oracle.serial(model, row, prefill_chunk_tokens=2048)
    top = mx.sort(outcome.logits.astype(mx.float32), axis=-1)[:, -2:]
    margins = [round(margin, 6) for margin in (top[:, 1] - top[:, 0]).tolist()]
    text = tokenizer.decode(outcome.tokens, skip_special_tokens=True)
    print(f"{len(prompt)} tokens -> {text!r} ({outcome.finish}), least margin {min(margins)}", flush=True)
    assert min(margins) > least_margin, min(margins)
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stop_tokens": row.stop_tokens,
        "tokens": outcome.tokens,
        "finish": outcome.finish,
        name: text,
        "margins": margins,
    }
