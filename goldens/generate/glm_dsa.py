"""What mlx-lm cannot say of GLM-5: layers that share another's choice of columns (GLM-5.2), which it does
not load, and the drafts of the prediction layer, which it throws away.

  python glm_dsa.py transformers ../linux-x86_64-cpu/glm_moe_dsa-tiny    writes shared.json there
  python glm_dsa.py mlx-vlm ../linux-x86_64-cpu/glm_moe_dsa-tiny         compares, and writes drafts.json

The first needs transformers 5.24.0 with torch 2.15.0, the second mlx-vlm 0.7.10 with mlx 0.32.4: an
environment each, and no part of `cargo xtask goldens`. The checkpoint is made by generate.py. Its bf16
weights are cast to f32, and each variant of its config leaves out the indexers that it has no use for.
"""

import argparse
import importlib
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import cases
import numpy as np

LAYERS = 5
VARIANTS = {
    "each_layer_chooses": {},
    "every_third": dict(index_topk_freq=3, index_skip_topk_offset=2),
    "listed": dict(indexer_types=["full", "shared", "shared", "full", "shared"]),
    "spelled": dict(index_topk_pattern="FSSSF"),
}
# For each, the layers without an indexer of their own.
SHARED = dict(each_layer_chooses=[], every_third=[2, 3], listed=[1, 2, 4], spelled=[1, 2, 3])
PROMPTS = [cases.prompt(f"shared.{length}", length) for length in (5, 13, 29)]
TOKENS = 12
# Logits of each step that are written: the greatest ones.
GREATEST = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("oracle", choices=["transformers", "mlx-vlm"])
    parser.add_argument("checkpoint", type=Path)
    arguments = parser.parse_args()
    run = by_transformers if arguments.oracle == "transformers" else by_mlx_vlm
    run(arguments.checkpoint)


def by_transformers(directory):
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import GlmMoeDsaForCausalLM

    torch.set_grad_enabled(False)
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    described = []
    for name, fields in VARIANTS.items():
        with variant(directory, name, fields, tensors, save_file) as path:
            model, loading = GlmMoeDsaForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
        assert not loading["missing_keys"], loading["missing_keys"]
        layers = {key.split(".")[2] for key in loading["unexpected_keys"]}
        assert layers == {str(LAYERS)}, layers
        shared = [n for n, kind in enumerate(model.config.indexer_types) if kind == "shared"]
        assert shared == SHARED[name], shared

        def forward(ids, cache=None):
            out = model(input_ids=torch.tensor([ids]), cache=cache, use_cache=True)
            return out.logits[0, -1].numpy(), out.cache

        rows = [greedy(forward, prompt) for prompt in PROMPTS]
        report(name, rows)
        described.append(dict(name=name, fields=fields, shared_layers=shared, rows=rows))
    versions = {package: version(package) for package in ["torch", "transformers", "numpy"]}
    write(directory / "shared.json", dict(versions=versions, variants=described))


def by_mlx_vlm(directory):
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    tensors = mx.load(str(directory / "model.safetensors"))
    tensors = {name: tensor.astype(mx.float32) for name, tensor in tensors.items()}
    expected = json.loads((directory / "shared.json").read_text())

    def save(tensors, path, metadata):
        mx.save_safetensors(path, tensors, metadata)

    described = []
    for case in expected["variants"]:
        name, fields = case["name"], case["fields"]
        with variant(directory, name, fields, tensors, save) as path:
            model, prediction = load_mlx_vlm(mx, path)
        for row in case["rows"]:
            compare(mx, name, model, row)
        rows = [draft(mx, model, prediction, row) for row in case["rows"]]
        described.append(dict(name=name, rows=rows))
    versions = {package: version(package) for package in ["mlx", "mlx-vlm", "numpy"]}
    write(directory / "drafts.json", dict(versions=versions, variants=described))


class variant:
    """A directory with the checkpoint under a changed config, while it is entered."""

    def __init__(self, directory, name, fields, tensors, save):
        self.directory, self.name, self.fields = directory, name, fields
        self.tensors, self.save = tensors, save

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory()
        path = Path(self.temporary.name)
        config = json.loads((self.directory / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(dict(config, **self.fields)))
        unused = [f"model.layers.{layer}.self_attn.indexer." for layer in SHARED[self.name]]
        kept = {
            name: tensor
            for name, tensor in self.tensors.items()
            if not any(name.startswith(prefix) for prefix in unused)
        }
        self.save(kept, str(path / "model.safetensors"), {"format": "pt"})
        return path

    def __exit__(self, *_):
        self.temporary.cleanup()


def greedy(forward, prompt):
    """The prompt at once, then token by token."""
    logits, cache = forward(prompt)
    row = dict(prompt=prompt, prompt_logits=[round(float(x), 7) for x in logits], tokens=[], greatest=[])
    for _ in range(TOKENS):
        best = np.argsort(-logits)[:GREATEST]
        row["greatest"].append([[int(token), float(logits[token])] for token in best])
        row["tokens"].append(int(best[0]))
        logits, cache = forward([row["tokens"][-1]], cache)
    return row


def report(name, rows):
    for row in rows:
        gap = min(step[0][1] - step[1][1] for step in row["greatest"])
        variety = len(set(row["tokens"])) / TOKENS
        print(f"{name:20} {len(row['prompt']):2} smallest gap {gap:.3f} variety {variety:.2f} {row['tokens']}")
        assert gap > 0.002 and variety > 0.5, "choose other prompts"


def load_mlx_vlm(mx, path):
    """The model and its prediction layer, with the norm of index keys as the models were trained."""
    from mlx_vlm.models import glm_moe_dsa
    from mlx_vlm.models.glm_moe_dsa.language import GlmMoeDsaMTP

    split = importlib.import_module("mlx_vlm.speculative.drafters.glm_moe_dsa_mtp.split")
    config, splitter = json.loads((path / "config.json").read_text()), split.GlmMoeDsaMTPSplitter()
    tensors = mx.load(str(path / "model.safetensors"))
    model = glm_moe_dsa.Model(glm_moe_dsa.ModelConfig.from_dict(config))
    own = {name: x for name, x in tensors.items() if not splitter.select_keys(name, config)}
    model.load_weights(list(model.sanitize(own).items()), strict=True)
    drafting = {name: x for name, x in tensors.items() if splitter.select_keys(name, config)}
    drafting = splitter.rename(drafting, config)
    splitter.postprocess(drafting, config)
    prediction = GlmMoeDsaMTP(model.config)
    named = [(name.removeprefix("mtp."), x) for name, x in drafting.items()]
    prediction.load_weights(named, strict=True)
    for module in [*model.modules(), *prediction.modules()]:
        if hasattr(module, "k_norm"):
            module.k_norm.eps = 1e-6
    model.eval()
    return model, prediction


def compare(mx, name, model, row):
    """Whether mlx-vlm says what transformers says."""
    cache = model.make_cache()

    def forward(ids, _=None):
        return np.array(model(mx.array([ids]), cache=cache).logits[0, -1]), None

    own = greedy(forward, row["prompt"])
    assert own["tokens"] == row["tokens"], (name, own["tokens"], row["tokens"])
    pairs = zip(own["prompt_logits"], row["prompt_logits"])
    print(f"{name:20} {len(row['prompt']):2} prompt logits differ by {max(abs(a - b) for a, b in pairs):.1e}")


def draft(mx, model, prediction, row):
    """The prediction layer's best token at each position of prompt and answer, and its logit: from what
    the model made of the token there and from the token after it."""
    from mlx_vlm.models.base import create_attention_mask

    sequence, text = mx.array([row["prompt"] + row["tokens"]]), model.language_model
    states = text(sequence, cache=model.make_cache(), return_hidden=True).hidden_states[-1]
    following = text.model.embed_tokens(sequence[:, 1:])
    (cache, *_) = model.make_cache()
    mask = create_attention_mask(following, cache[0], return_array=True)
    logits = np.array(text.lm_head(prediction(states[:, :-1], following, mask, cache))[0])
    return dict(drafts=logits.argmax(-1).tolist(), logits=[float(x) for x in logits.max(-1)])


def write(path, value):
    import re

    text = json.dumps(value, indent=1)
    text = re.sub(r"\[\n[\s\d.,e-]+\]", lambda match: "".join(match[0].split()), text)
    path.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
