"""What mlx-lm's sampler keeps of log-probabilities, and what its logits processors make of answers."""

from pathlib import Path

import cases
import mlx.core as mx
import numpy as np
from checkpoint import write_json
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

VOCAB = 64
VECTORS = 40
SHAPES = ["spread", "peaked", "flat", "two_peaks", "rounded", "ties", "uniform", "far_tail"]
TOP_P = [0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999]
MIN_P = [0.01, 0.05, 0.1, 0.2, 0.5, 1.0]
TOP_K = [1, 2, 3, 5, 10, 20, 40, 63]
OFF = dict(top_p=1.0, min_p=0.0, top_k=0)
XTC_THRESHOLD = [0.005, 0.02, 0.05, 0.1, 0.3, 0.5]

CHECKPOINT = "llama-tiny"
ANSWER_TOKENS = 64
# As many as a request may ask for.
TOP = 20


def generate(out: Path, versions):
    random = np.random.Generator(np.random.PCG64(20250101))
    vectors = mx.stack([draw(random, SHAPES[index % len(SHAPES)]) for index in range(VECTORS)])
    described, filtered = [], []
    xtc_random = np.random.Generator(np.random.PCG64(20250102))
    wanted = [(index, each) for index in range(VECTORS) for each in parameter_sets(random)]
    wanted += [(index, each) for index in range(VECTORS) for each in xtc_sets(xtc_random)]
    for index, parameters in wanted:
        rows = chain(vectors[index : index + 1], parameters)
        check_batched(vectors, index, parameters, rows)
        filtered.append(rows[0])
        described.append(describe(index, vectors[index], parameters, rows[0]))
    answers, arrays = processed_answers(out / CHECKPOINT)
    whole = dict(versions=versions, vocab=VOCAB, cases=described, answers=answers)
    write_json(out / "sampling.json", whole)
    arrays |= dict(logprobs=vectors, filtered=mx.stack(filtered))
    mx.save_safetensors(str(out / "sampling.safetensors"), arrays)
    ties = sum(case["top_k_tied"] for case in described)
    print(f"{len(described)} cases over {VECTORS} vectors, {ties} with a tie at the top_k boundary")


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


def xtc_sets(random):
    """XTC alone, with exempt tokens, and between the filters that come before and after it. The chance is
    1, so that nothing depends on mlx's random numbers; it is no certainty below that."""
    xtc = lambda: dict(OFF, xtc_probability=1.0, xtc_threshold=float(random.choice(XTC_THRESHOLD)))
    exempt = sorted({int(token) for token in random.integers(0, VOCAB, 12)})
    return [
        xtc(),
        dict(xtc(), xtc_special_tokens=exempt),
        dict(
            xtc(),
            xtc_special_tokens=exempt[:1],
            top_p=TOP_P[random.integers(3, len(TOP_P))],
            min_p=MIN_P[random.integers(3)],
            top_k=TOP_K[random.integers(2, len(TOP_K))],
        ),
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


# --- answers ---

WHOLE = 0


def answer_cases():
    """Each processor by itself, over few tokens, mlx-lm's 20 and the whole context, and together."""
    bias = {5: 2.5, 130: 4.0, 131: -100.0, 200: 0.37, 287: -3.3}
    together = dict(
        logit_bias=bias, repetition_penalty=1.2, repetition_context_size=7,
        presence_penalty=0.9, presence_context_size=WHOLE,
        frequency_penalty=0.35, frequency_context_size=33,
    )
    repeat = lambda penalty, size=20: dict(repetition_penalty=penalty, repetition_context_size=size)
    presence = lambda penalty, size=20: dict(presence_penalty=penalty, presence_context_size=size)
    frequency = lambda penalty, size=20: dict(frequency_penalty=penalty, frequency_context_size=size)
    return [
        ("plain", 9, {}),
        ("logit_bias", 9, dict(logit_bias=bias)),
        ("repetition", 13, repeat(1.3)),
        ("repetition_of_none", 13, repeat(1.0)),
        ("repetition_wanted", 13, repeat(0.8)),
        ("repetition_of_1", 13, repeat(0.6, 1)),
        ("repetition_whole", 150, repeat(1.15, WHOLE)),
        ("presence", 5, presence(1.5)),
        ("presence_wanted", 5, presence(-0.8)),
        ("presence_whole", 150, presence(0.7, WHOLE)),
        ("frequency", 29, frequency(0.6)),
        ("frequency_wanted", 29, frequency(-0.15, 6)),
        ("frequency_whole", 150, frequency(0.21, WHOLE)),
        ("together", 40, together),
        ("together_from_one", 1, together),
    ]


def processed_answers(directory):
    """Greedy answers of the checkpoint, and the most likely tokens of each step by mlx-lm's numbers."""
    model, _ = load_model(directory)
    described, arrays = [], {}
    for name, length, parameters in answer_cases():
        prompt = cases.prompt(f"sampling.{name}", length)
        tokens, logprobs = answer(model, prompt, parameters)
        plain, _ = answer(model, prompt, {})
        changes = bool(parameters) and name != "repetition_of_none"
        assert (tokens != plain) == changes, f"{name} changes nothing"
        order = np.lexsort((np.broadcast_to(np.arange(logprobs.shape[1]), logprobs.shape), -logprobs))
        top = order[:, :TOP]
        arrays[f"{name}.chosen"] = mx.array(np.take_along_axis(logprobs, np.array(tokens)[:, None], 1)[:, 0])
        arrays[f"{name}.top_ids"] = mx.array(top.astype(np.uint32))
        arrays[f"{name}.top_logprobs"] = mx.array(np.take_along_axis(logprobs, top, 1))
        bias = list(parameters.get("logit_bias", {}).items())
        rest = {key: value for key, value in parameters.items() if key != "logit_bias"}
        described.append(dict(name=name, prompt=prompt, logit_bias=bias, **rest, tokens=tokens))
        print(f"{CHECKPOINT} {name}: {len(set(tokens))} different tokens")
    return described, arrays


def answer(model, prompt, parameters):
    """The tokens, and the log-probabilities `[tokens, V]` that they were taken from, as f32: bf16 numbers
    fit it exactly."""
    processors = sample_utils.make_logits_processors(**parameters)
    steps = generate_step(
        mx.array(prompt), model, max_tokens=ANSWER_TOKENS, logits_processors=processors,
        prefill_step_size=64,
    )
    tokens, logprobs = zip(*steps)
    return list(tokens), np.array(mx.stack(logprobs).astype(mx.float32))
