"""Writes what mlx-lm and transformers make of fixed inputs: see ../README.md for the formats.

  python generate.py --out ../linux-x86_64-cpu                  all but the real model
  python generate.py --out ../linux-x86_64-cpu --smollm2 DIR    and SmolLM2, imported in DIR
  python generate.py --out ../linux-x86_64-cpu --gemma3-270m DIR   Gemma 3 270M alone
  python generate.py --out ../linux-x86_64-cpu --only NAME ...  these checkpoints alone
"""

import argparse
import dataclasses
import platform
from importlib.metadata import version
from pathlib import Path

import cases
import checkpoint
import continued
import converted
import embeddings
import gemma3_270m
import glm
import mlx.core as mx
import oracle
import rotating
import sampling
import smollm2
import templates
from mlx.utils import tree_map_with_path
from mlx_lm.utils import load_model

# Numbers depend on these exactly; the second is MLX's own build for the machine.
PINNED = "0.32.2"
BUILDS = dict(cpu="mlx-cpu", metal="mlx-metal", cuda="mlx-cuda-13")

# What each checkpoint is asked for; the others get a few cases.
WANTED = {
    "llama-tiny": cases.full,
    "llama-tiny-sliding": cases.sliding,
    "llama-tiny-wide": lambda: cases.few() + cases.quantized_kv(),
    "gemma-tiny": cases.family,
    # Its batches forget that query heads share key heads.
    "gemma2-tiny": lambda: cases.family(truth="alone"),
    "gemma2-tiny-4bit": lambda: cases.few(truth="alone"),
    "gemma3-tiny": cases.family,
    "gemma4-12b-tiny": lambda: cases.family() + cases.crossing() + cases.quantized_full_layer(2),
    "gemma4-e4b-tiny": lambda: cases.family() + cases.crossing(),
    "gemma4-e4b-tiny-4bit": lambda: cases.few() + cases.crossing(),
    "gemma4-26b-tiny": lambda: cases.family() + cases.crossing(),
    "gemma4-26b-tiny-4bit": cases.family,
    **{name: cases.family for name in [*checkpoint.DENSE, *checkpoint.MIXTURES]},
    **{name: cases.family for name in glm.configs(checkpoint.SMALL)},
    "qwen3_5-tiny": lambda: cases.family() + cases.recurrent(),
    "qwen3_5_moe-tiny-hub": cases.family,
    "qwen3_5_moe-tiny-4bit": cases.family,
    "gpt_oss-tiny": cases.few,
    "gpt_oss-tiny-mxfp4": cases.sliding,
    "gpt_oss-tiny-mxfp4-q8": cases.few,
    # Its rope fails on batches.
    "llama-tiny-dynamic": lambda: cases.family(truth="alone"),
}

OTHER_DTYPES = {
    "llama-tiny": dict(float16=cases.other_dtypes, float32=cases.other_dtypes),
    # In f16 its sums stop at the greatest number, in f32 its embedding's factor is still bf16's.
    "gemma3-tiny": dict(float16=cases.few, float32=cases.few),
    "qwen3_5-tiny": dict(float16=cases.few, float32=cases.few),
}

# On the CPU MLX multiplies dense experts in f32 only.
F32_ONLY = {"gemma4-26b-tiny", "gpt_oss-tiny", "qwen3_moe-tiny", "qwen3_5_moe-tiny-hub", *glm.F32_ONLY}

# Rows of these go on from caches that were taken out of a batch.
CONTINUED = ["llama-tiny", "qwen3_5-tiny", "glm4_moe_lite-tiny-dense", "glm_moe_dsa-tiny-dense"]

# Of these the last hidden states are wanted too.
EMBEDDING = ["qwen3-tiny"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the directory of this machine kind")
    parser.add_argument("--only", nargs="+", help="tiny checkpoints by name, and nothing else")
    parser.add_argument("--gemma3-270m", type=Path, help="an imported one, and no tiny checkpoints")
    parser.add_argument("--smollm2", type=Path, help="an imported one, and no tiny checkpoints")
    arguments = parser.parse_args()
    versions = checked_versions(parser)
    if arguments.gemma3_270m:
        gemma3_270m.generate(arguments.gemma3_270m, arguments.out / "gemma-3-270m", versions)
    if arguments.smollm2:
        smollm2.generate(arguments.smollm2, arguments.out / "smollm2", versions)
    if arguments.gemma3_270m or arguments.smollm2:
        return
    for name in arguments.only or checkpoint.CONFIGS:
        tiny(arguments.out / name, name, versions)
    for name in converted.names():
        if name in (arguments.only or [name]):
            converted.generate(arguments.out / name, name, describe, versions)
    if arguments.only:
        return
    sampling.generate(arguments.out, versions)
    rotating.generate(arguments.out, versions)
    templates.generate(arguments.out / "llama-tiny", arguments.out.parent / "templates")


def checked_versions(parser):
    """Names what made the goldens; another MLX would make others."""
    build = "metal" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else "cpu"
    pinned = ["mlx", BUILDS[build], "mlx-lm"]
    versions = {name: version(name) for name in [*pinned, "numpy", "transformers"]}
    for name in pinned:
        if versions[name] != PINNED:
            parser.error(f"{name} is {versions[name]}, the goldens need {PINNED}")
    system = {"Darwin": "macos", "Linux": "linux"}.get(platform.system(), platform.system())
    processor = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return dict(versions, machine=f"{system}-{processor}-{build}")


def tiny(directory, name, versions):
    config = checkpoint.CONFIGS[name]
    model = checkpoint.build(config)
    if name in checkpoint.QUANTIZED:
        config = checkpoint.quantize(model, config, *checkpoint.QUANTIZED[name])
    checkpoint.write(directory, model, config, name)
    # From here on the model is what any reader of the files sees.
    wanted = WANTED.get(name, cases.few)
    dtype = "float32" if name in F32_ONLY else "bfloat16"
    write_cases(directory, name, dtype, wanted(), versions)
    if name in EMBEDDING:
        embeddings.generate(directory, name, versions)
    if name in CONTINUED:
        continued.generate(directory, name, loaded(directory), versions)
    for dtype, wanted in OTHER_DTYPES.get(name, {}).items():
        write_cases(directory, name, dtype, wanted(), versions)


def loaded(directory):
    model, _ = load_model(directory)
    glm.mend(model)
    return model


def write_cases(directory, name, dtype, wanted, versions):
    model = loaded(directory)
    if dtype != "bfloat16":
        kind = getattr(mx, dtype)
        cast = lambda name, weight: weight.astype(kind) if checkpoint.is_cast(model, name) else weight
        model.update(tree_map_with_path(cast, model.parameters()))
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
    alone = [oracle.serial(model, row, case.prefill_chunk_tokens, case.kv) for row in case.rows]
    if case.kv:
        plain = [oracle.serial(model, row, case.prefill_chunk_tokens) for row in case.rows]
        assert not any(map(same_bits, alone, plain)), "quantizing the KV caches changed nothing"
    by_itself = case.lane == "serial" or case.truth == "alone"
    return (alone if by_itself else oracle.continuous(model, case)), alone


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
    how = dict(name=case.name, lane=case.lane, prefill_chunk_tokens=case.prefill_chunk_tokens)
    return dict(how, **(dict(kv=case.kv) if case.kv else {}), rows=rows)


def same_bits(left, right):
    return left.tokens == right.tokens and bool(mx.array_equal(left.logits, right.logits))


def report(title, outcome, alone):
    tokens, variety = outcome.tokens, len(set(outcome.tokens)) / len(outcome.tokens)
    if same_bits(outcome, alone):
        compared = "= serial bits"
    else:
        compared = "= serial tokens" if tokens == alone.tokens else "OTHER THAN SERIAL"
    print(f"{title:48} {compared} variety {variety:.2f} {outcome.finish} {tokens}", flush=True)
    # On the CPU a row's tokens do not depend on its neighbours; elsewhere the kernels differ.
    assert mx.default_device() != mx.cpu or tokens == alone.tokens, (tokens, alone.tokens)
    # A loop or an echo would hide a misplaced row.
    assert variety > 0.5, title


if __name__ == "__main__":
    main()
