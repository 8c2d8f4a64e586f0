"""What mlx-lm's Qwen3 makes of a text's last token, as its embedding models use it.

The vectors are the hidden states after the last norm; a text is run at once and without a cache.
"""

import cases
import checkpoint
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model

LENGTHS = [1, 6, 13, 41]
# What texts end with in the tokenizers of these models.
END = 257
CUT = 6


def generate(directory, name, versions):
    texts = [cases.prompt(f"embedding.{length}", length - 1) + [END] for length in LENGTHS]
    model, _ = load_model(directory)
    vectors = states(model, texts, "bfloat16")
    model.update(tree_map(lambda weight: weight.astype(mx.float32), model.parameters()))
    vectors.update(states(model, texts, "float32"))
    described = dict(model=name, versions=versions, cut=CUT, texts=texts)
    checkpoint.write_json(directory / "embeddings.json", described)
    mx.save_safetensors(str(directory / "embeddings.safetensors"), vectors)


def states(model, texts, dtype):
    vectors = {}
    for index, text in enumerate(texts):
        state = np.array(model.model(mx.array([text]))[0, -1].astype(mx.float32)).astype(np.float64)
        for kind, vector in [("whole", state), ("cut", state[:CUT])]:
            unit = vector / np.linalg.norm(vector)
            vectors[f"{dtype}.{index}.{kind}"] = mx.array(unit[None].astype(np.float32))
    return vectors
