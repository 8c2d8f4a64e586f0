"""Writes a Llama checkpoint with random weights, of many layers and next to no width.

Its steps compute so little that what the host does for them can be seen.
"""

import argparse
import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama

CONFIG = dict(
    model_type="llama",
    vocab_size=1024,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=28,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    torch_dtype="float32",
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="the directory, which must exist")
    out = parser.parse_args().out
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(out / "model.safetensors"), weights, {"format": "mlx"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


if __name__ == "__main__":
    main()
