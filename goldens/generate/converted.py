"""What mlx-lm's converter makes of the tiny checkpoints: a digest of every tensor, what its config says of
packing, and what the result says.
"""

import contextlib
import hashlib
import importlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import cases
import checkpoint
import glm
import mlx.core as mx
import numpy as np
import oracle
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import load_model

# The package's attribute of that name is a function of the module.
converter = importlib.import_module("mlx_lm.convert")

# Bits, size of the groups, and the type that the rest is cast to.
WAYS = [(4, 32, None), (8, 64, None)]
# The same with numbers that keep their own type, and with sums that are stored by one.
FURTHER_WAYS = {
    "llama-tiny": [(4, 64, None), (4, 32, "float16"), (8, 32, "float32")],
    "glm4_moe_lite-tiny": [(4, 32, "float16")],
    "qwen3_5-tiny-hub": [(4, 32, "float16")],
}

# Packed checkpoints that are wide enough for what mlx-lm packs in groups of 64; they are unpacked first.
UNPACKED = [
    "gemma4-26b-tiny-4bit",
    "glm4_moe_lite-tiny-4bit",
    "glm_moe_dsa-tiny-4bit",
    "gpt_oss-tiny-mxfp4-q8",
    "qwen3_5_moe-tiny-4bit",
    "qwen3_moe-tiny-4bit",
]


def names():
    dense = [name for name in checkpoint.CONFIGS if name not in checkpoint.QUANTIZED]
    return [*dense, "gpt_oss-tiny-mxfp4", *UNPACKED]


def generate(directory, name, describe, versions):
    with tempfile.TemporaryDirectory() as place:
        source = directory
        if name in UNPACKED:
            source = unpacked(directory, Path(place) / "unpacked")
        ways = WAYS + FURTHER_WAYS.get(name, [])
        described = [
            convert(source, Path(place) / str(at), describe, *way) for at, way in enumerate(ways)
        ]
    for entry in described:
        said = entry["answer"] and entry["answer"]["rows"][0]["tokens"]
        packed = sum(".scales" in tensor for tensor in entry["tensors"])
        print(f"{name:28} {entry['bits']} bits {packed:3} packed {said}", flush=True)
    golden = dict(model=name, versions=versions, conversions=described)
    checkpoint.write_json(directory / "converted.json", golden)


def convert(source, target, describe, bits, group_size, dtype):
    ours = dict(load=without_tokenizer, quantize_model=quantized)
    with mock.patch.multiple(converter, **ours), quiet():
        converter.convert(
            str(source),
            str(target),
            quantize=True,
            q_bits=bits,
            q_group_size=group_size,
            dtype=dtype,
        )
    config = json.loads((target / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"]
    weights = mx.load(str(target / "model.safetensors"))
    return dict(
        bits=bits,
        group_size=group_size,
        dtype=dtype,
        quantization=config["quantization"],
        tensors={name: digest(weights[name]) for name in sorted(weights)},
        answer=answer(target, describe),
    )


def without_tokenizer(path, **_):
    """What mlx-lm's function returns, with a tokenizer that writes nothing: transformers does not know all
    families."""
    model, config = load_model(Path(path), lazy=True)
    return model, mock.Mock(), config


def quantized(model, *arguments, quant_predicate=None, **options):
    """mlx-lm's function, but that modules which do not divide into the groups that the model wants for them
    stay dense, where mlx-lm fails."""
    wanted = getattr(model, "quant_predicate", None) or (lambda path, module: True)

    def predicate(path, module):
        how = wanted(path, module)
        if isinstance(how, dict) and module.weight.shape[-1] % how["group_size"]:
            return False
        return how

    return real_quantize_model(model, *arguments, quant_predicate=predicate, **options)


real_quantize_model = converter.quantize_model


def quiet():
    return contextlib.redirect_stdout(io.StringIO())


def digest(array):
    """The beginning of the SHA-256 of the type, the shape and the numbers."""
    types = {mx.bfloat16: "BF16", mx.float16: "F16", mx.float32: "F32", mx.uint32: "U32", mx.uint8: "U8"}
    head = f"{types[array.dtype]} {list(array.shape)} ".encode()
    bits = mx.contiguous(array).reshape(-1).view(mx.uint8)
    return hashlib.sha256(head + np.array(bits).tobytes()).hexdigest()[:16]


def answer(directory, describe):
    """What the converted model says in bf16; none where that does not run on a processor."""
    model, _ = load_model(directory)
    glm.mend(model)
    if any(type(module) is SwitchLinear for module in model.modules()):
        return None
    kinds = {array.dtype for _, array in checkpoint.tree_flatten(model.parameters())}
    if mx.bfloat16 not in kinds:
        return None
    case = cases.serial("converted", 9, 8)
    run = oracle.serial(model, case.rows[0], case.prefill_chunk_tokens)
    return describe(case, [run], [run])


def unpacked(source, target):
    """The checkpoint with its matrices dense, in bf16."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    quantization = config.pop("quantization")
    del config["quantization_config"]
    weights = mx.load(str(source / "model.safetensors"))
    for path in [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]:
        how = quantization.get(path) or {key: quantization[key] for key in ["group_size", "bits", "mode"]}
        parts = [weights.pop(f"{path}.{part}", None) for part in ["weight", "scales", "biases"]]
        weights[f"{path}.weight"] = mx.dequantize(*parts, **how, dtype=mx.bfloat16)
    checkpoint.write_json(target / "config.json", config)
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "mlx"})
    return target
