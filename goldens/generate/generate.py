"""Writes the golden outputs of mlx-lm on this machine: see ../README.md for the formats.

  python generate.py --out ../linux-x86_64-cpu              the tiny checkpoints and their cases
  python generate.py --out ../linux-x86_64-cpu --smollm2 DIR   SmolLM2 in DIR instead
"""

import argparse
import dataclasses
import platform
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)

import cases  # noqa: E402
import checkpoint  # noqa: E402
import oracle  # noqa: E402
import smollm2  # noqa: E402
from mlx.utils import tree_map  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

PINNED = {"mlx": "0.32.2", "mlx-cpu": "0.32.2", "mlx-lm": "0.32.2"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the directory of this machine kind")
    parser.add_argument("--smollm2", type=Path, help="an imported SmolLM2-135M-Instruct")
    arguments = parser.parse_args()
    versions = {name: version(name) for name in [*PINNED, "numpy", "transformers"]}
    for name, wanted in PINNED.items():
        if versions[name] != wanted:
            parser.error(f"{name} is {versions[name]}, the goldens need {wanted}")
    versions["machine"] = f"{platform.system().lower()}-{platform.machine()}-cpu"
    if arguments.smollm2:
        smollm2.generate(arguments.smollm2, arguments.out / "smollm2", versions)
        return
    for name in checkpoint.CONFIGS:
        tiny(arguments.out / name, name, versions)


def tiny(directory, name, versions):
    config = checkpoint.CONFIGS[name]
    model = checkpoint.build(config)
    if name.endswith("4bit"):
        config = checkpoint.quantize(model, config)
    checkpoint.write(directory, model, config)
    # From here on the model is what any reader of the files sees.
    first = name == "llama-tiny"
    write_cases(directory, name, "bfloat16", cases.full() if first else cases.few(), versions)
    if first:
        for dtype in ["float16", "float32"]:
            write_cases(directory, name, dtype, cases.other_dtypes(), versions)


def write_cases(directory, name, dtype, wanted, versions):
    model, _ = load_model(directory)
    if dtype != "bfloat16":
        kind = getattr(mx, dtype)
        model.update(tree_map(lambda weight: weight.astype(kind), model.parameters()))
    suffix = "" if dtype == "bfloat16" else f".{dtype}"
    logits, described = {}, []
    for case in wanted:
        runs, alone = run(model, case)
        described.append(describe(case, runs, alone))
        for index, outcome in enumerate(runs):
            logits[f"{case.name}.{index}"] = outcome.logits
            report(f"{name} {dtype} {case.name}.{index}", outcome, alone[index])
    checkpoint_json = dict(model=name, dtype=dtype, versions=versions, cases=described)
    checkpoint.write_json(directory / f"cases{suffix}.json", checkpoint_json)
    mx.save_safetensors(str(directory / f"logits{suffix}.safetensors"), logits)


def run(model, case):
    """The outcome of each row in its case, and alone."""
    for row in case.rows:
        if row.stop_at is not None:
            row.stop_tokens = [stop_token(model, row, case.prefill_chunk_tokens)]
    alone = [oracle.serial(model, row, case.prefill_chunk_tokens) for row in case.rows]
    return (alone if case.lane == "serial" else oracle.continuous(model, case)), alone


def stop_token(model, row, prefill_chunk_tokens):
    tokens = oracle.serial(model, row, prefill_chunk_tokens).tokens
    token = tokens[row.stop_at]
    assert token not in tokens[: row.stop_at], "the stop token occurs earlier: choose another index"
    return token


def describe(case, runs, alone):
    rows = [
        dict(
            prompt=row.prompt,
            max_tokens=row.max_tokens,
            stop_tokens=row.stop_tokens,
            start=row.start and dataclasses.asdict(row.start),
            tokens=outcome.tokens,
            finish=outcome.finish,
            tokens_equal_serial=outcome.tokens == serial.tokens,
            logits_equal_serial=same_bits(outcome, serial),
        )
        for row, outcome, serial in zip(case.rows, runs, alone)
    ]
    return dict(
        name=case.name, lane=case.lane, prefill_chunk_tokens=case.prefill_chunk_tokens, rows=rows
    )


def same_bits(left, right):
    return left.tokens == right.tokens and bool(mx.array_equal(left.logits, right.logits))


def report(title, outcome, alone):
    tokens, variety = outcome.tokens, len(set(outcome.tokens)) / len(outcome.tokens)
    serial = "serial" if same_bits(outcome, alone) else "SERIAL TOKENS, OTHER BITS"
    print(f"{title:48} {serial} variety {variety:.2f} {outcome.finish} {tokens}", flush=True)
    # On the CPU a row's tokens do not depend on its neighbours.
    assert tokens == alone.tokens, (tokens, alone.tokens)
    # A loop or an echo would hide a misplaced row.
    assert variety > 0.5, title


if __name__ == "__main__":
    main()
