"""Log-probabilities as mlx-lm's sampler filters them."""

from pathlib import Path

import mlx.core as mx
import numpy as np
from checkpoint import write_json
from mlx_lm import sample_utils

VOCAB = 64
VECTORS = 40
SHAPES = ["spread", "peaked", "flat", "two_peaks", "rounded", "ties", "uniform", "far_tail"]
TOP_P = [0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999]
MIN_P = [0.01, 0.05, 0.1, 0.2, 0.5, 1.0]
TOP_K = [1, 2, 3, 5, 10, 20, 40, 63]
OFF = dict(top_p=1.0, min_p=0.0, top_k=0)


def generate(out: Path, versions):
    random = np.random.Generator(np.random.PCG64(20250101))
    vectors = mx.stack([draw(random, SHAPES[index % len(SHAPES)]) for index in range(VECTORS)])
    cases, filtered = [], []
    for index in range(VECTORS):
        for parameters in parameter_sets(random):
            rows = chain(vectors[index : index + 1], parameters)
            check_batched(vectors, index, parameters, rows)
            filtered.append(rows[0])
            cases.append(describe(index, vectors[index], parameters, rows[0]))
    write_json(out / "sampling.json", dict(versions=versions, vocab=VOCAB, cases=cases))
    arrays = dict(logprobs=vectors, filtered=mx.stack(filtered))
    mx.save_safetensors(str(out / "sampling.safetensors"), arrays)
    ties = sum(case["top_k_tied"] for case in cases)
    print(f"{len(cases)} cases over {VECTORS} vectors, {ties} with a tie at the top_k boundary")


def draw(random, shape):
    """Normalized log-probabilities in f32, as the sampler gets them."""
    normal = random.standard_normal(VOCAB).astype(np.float32)
    logits = dict(
        spread=3 * normal,
        peaked=np.where(np.arange(VOCAB) == random.integers(VOCAB), 12, normal),
        flat=0.05 * normal,
        two_peaks=normal + np.where(np.isin(np.arange(VOCAB), random.integers(0, VOCAB, 2)), 6, 0),
        rounded=np.round(8 * normal) / 8,
        ties=np.round(normal),
        uniform=np.zeros(VOCAB),
        far_tail=-np.exp(2 * normal),
    )[shape]
    logits = mx.array(logits.astype(np.float32))
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def parameter_sets(random):
    """Each filter alone, all in a chain, and a chain of two."""
    top_p, min_p, top_k = (
        lambda values=values: values[random.integers(len(values))] for values in (TOP_P, MIN_P, TOP_K)
    )
    everything = dict(top_p=top_p(), min_p=min_p(), top_k=top_k())
    left_out = list(OFF)[random.integers(3)]
    return [
        dict(OFF, top_p=top_p()),
        dict(OFF, min_p=min_p()),
        dict(OFF, top_k=top_k()),
        everything,
        dict(top_p=top_p(), min_p=min_p(), top_k=top_k()) | {left_out: OFF[left_out]},
    ]


def chain(rows, parameters):
    """What mlx-lm's sampler is about to draw from, before the temperature."""
    drawn_from = []
    original = sample_utils.categorical_sampling
    sample_utils.categorical_sampling = lambda logprobs, temp: drawn_from.append(logprobs)
    try:
        sample_utils.make_sampler(temp=1.0, **parameters)(rows)
    finally:
        sample_utils.categorical_sampling = original
    (result,) = drawn_from
    return result


def check_batched(vectors, index, parameters, alone):
    """A row's outcome does not depend on the rows it is filtered with."""
    batched = chain(vectors, parameters)[index : index + 1]
    assert mx.array_equal(batched, alone), (index, parameters)


def describe(index, vector, parameters, result):
    before_top_k = chain(vector[None], dict(parameters, top_k=0))[0] if parameters["top_k"] else None
    return dict(
        vector=index,
        shape=SHAPES[index % len(SHAPES)],
        **parameters,
        kept=int(mx.isfinite(result).sum().item()),
        top_k_tied=before_top_k is not None and tied(before_top_k, parameters["top_k"]),
    )


def tied(logprobs, top_k):
    """Whether the last kept and the first dropped token are equally likely."""
    ranked = sorted(logprobs.tolist(), reverse=True)
    return ranked[top_k - 1] == ranked[top_k] != -np.inf
