"""Record what gguf-py makes of random quantized blocks.

Writes engine/src/hub/gguf/fixtures/blocks.json: for each tensor type a few blocks of random bytes
(scales kept finite) and the bits of the f32 values that gguf-py dequantizes them to.

Run with gguf==0.19.0 and numpy: python goldens/generate/gguf_blocks.py
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

BLOCKS = 3
# Where each type keeps its 16-bit scales and minima.
HALVES = {
    "F32": [], "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
TARGET = Path(__file__).resolve().parents[2] / "engine/src/hub/gguf/fixtures/blocks.json"


def random_blocks(kind, rng):
    """Random bytes, with each half-precision field redrawn until it is finite."""
    _, size = GGML_QUANT_SIZES[kind]
    count = BLOCKS * 8 if size <= 4 else BLOCKS
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for block in blocks:
        for at in HALVES[kind.name]:
            while not np.isfinite(block[at : at + 2].view(np.float16)[0]):
                block[at : at + 2] = rng.integers(0, 256, 2, dtype=np.uint8)
        if kind.name in ("F32", "BF16"):
            block[-1] &= 0xBF  # clears the exponent's top bit: finite
    return blocks


def main():
    rng = np.random.default_rng(20)
    fixture = {}
    for name in HALVES:
        kind = GGMLQuantizationType[name]
        blocks = random_blocks(kind, rng)
        values = np.ascontiguousarray(dequantize(blocks.reshape(1, -1), kind), dtype=np.float32)
        assert np.isfinite(values).all()
        fixture[name] = {"packed": blocks.tobytes().hex(), "values": values.tobytes().hex()}
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(fixture, indent=1) + "\n")


if __name__ == "__main__":
    main()
