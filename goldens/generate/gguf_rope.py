"""Record the RoPE divisors that a converter derives from Llama 3's scaling.

Writes engine/src/hub/gguf/fixtures/rope_factors.json: for a few published settings the quotient of
mlx-lm's scaled and plain wavelengths, which is what llama.cpp keeps as `rope_freqs.weight`.

Run with mlx-lm==0.32.2: python goldens/generate/gguf_rope.py
"""

import json
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.rope_utils import Llama3RoPE

SETTINGS = [  # head size, theta, factor: Llama 3.1 8B, 3.2 1B, 3.2 3B
    (128, 500000.0, 8.0),
    (64, 500000.0, 32.0),
    (128, 500000.0, 32.0),
]
TARGET = Path(__file__).resolve().parents[2] / "engine/src/hub/gguf/fixtures/rope_factors.json"


def divisors(head, theta, factor):
    scaling = {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = Llama3RoPE(dims=head, base=theta, scaling_config=scaling)
    return (rope._freqs / theta ** (mx.arange(0, head, 2) / head)).tolist()


def main():
    mx.set_default_device(mx.cpu)
    fixture = [
        {"head": head, "theta": theta, "factor": factor, "divisors": divisors(head, theta, factor)}
        for head, theta, factor in SETTINGS
    ]
    TARGET.write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
