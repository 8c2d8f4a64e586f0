"""What mlx-vlm makes of tiny DiffusionGemma checkpoints: the oracle is not mlx-lm here, which lacks the family.

It runs in an environment of its own, because mlx-vlm 0.7.10 wants a newer MLX than the other goldens are made with:

    pip install "mlx[cpu]==0.32.4" transformers==5.24.0 Pillow requests
    pip install --no-deps mlx-vlm==0.7.10
    python goldens/generate/diffusion_gemma.py goldens/linux-x86_64-cpu

Everything is f32: processors cannot multiply dense experts in bf16. The weights are rounded to bf16, so that the
files are half as large and say the same numbers. Noise comes from `noise`, which the tests have too; proposals are
the most likely tokens, so there is nothing random. Of every forward the case keeps what it found and what was
accepted: with the noise, that is all that the next one sees.

transformers 5.24.0, fed the same noise, agrees with mlx-vlm on canvases accepted by entropy (the only rule it has).
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

PLACES, VOCAB, LAYERS, EXPERTS, GROUP = 16, 288, 4, 4, 32
SLIDING, FULL = "sliding_attention", "full_attention"

TEXT = dict(
    model_type="diffusion_gemma_text",
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    moe_intermediate_size=32,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_global_key_value_heads=1,
    head_dim=16,
    global_head_dim=32,
    hidden_activation="gelu_pytorch_tanh",
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    eos_token_id=1,
    bos_token_id=2,
    tie_word_embeddings=True,
    attention_bias=False,
    sliding_window=8,
    final_logit_softcapping=30.0,
    use_bidirectional_attention="vision",
    num_experts=EXPERTS,
    top_k_experts=2,
    layer_types=[SLIDING, FULL] * (LAYERS // 2),
    rope_parameters={
        SLIDING: dict(rope_type="default", rope_theta=1e4),
        FULL: dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
    },
)
# Ids of images that no token has: nothing is ever taken for one.
WHOLE = dict(
    model_type="diffusion_gemma",
    architectures=["DiffusionGemmaForBlockDiffusion"],
    canvas_length=PLACES,
    tie_word_embeddings=True,
    image_token_id=VOCAB + 1,
    boi_token_id=VOCAB + 2,
    eoi_token_id=VOCAB + 3,
    text_config=TEXT,
    vision_config=None,
)
GENERATION = dict(
    max_new_tokens=256,
    max_denoising_steps=48,
    t_min=0.4,
    t_max=0.8,
    stability_threshold=1,
    confidence_threshold=0.005,
    sampler_config=dict(_cls_name="EntropyBoundSamplerConfig", entropy_bound=0.1),
)


def rules(**changes):
    """The rules of a case under our names; what is not named is the checkpoint's."""
    plain = dict(
        least_tokens=PLACES,
        most_tokens=PLACES,
        forwards_max=48,
        acceptance="entropy",
        bound=0.1,
        stable_forwards=1,
        mean_entropy_below=0.005,
    )
    return plain | changes


def confident(**changes):
    return rules(**(dict(acceptance="confident", bound=0.9, least_tokens=64) | changes))


SHORT = [10, 200, 31, 77, 5]
LONG = [3, 91, 250, 17, 64, 129, 8, 220, 45, 12, 99, 150, 33]
# Name, prompt, tokens asked for, rules, and the place from which on an earlier case's first new token is a stop token.
CASES = [
    ("entropy", SHORT, 40, rules(), None),
    ("entropy-past-the-window", LONG, 48, rules(forwards_max=24), None),
    ("entropy-many-places-at-once", LONG, 32, rules(bound=4.0, forwards_max=12), None),
    ("entropy-ends-when-sure", LONG, 32, rules(bound=60.0, stable_forwards=0, mean_entropy_below=0.7), None),
    ("entropy-ends-when-stable", LONG, 6, rules(least_tokens=1, most_tokens=1, mean_entropy_below=6.0), None),
    ("confident", SHORT, 40, confident(), None),
    ("confident-past-the-window", LONG, 40, confident(), None),
    ("confident-with-a-low-bar", LONG, 32, confident(bound=0.5), None),
    ("confident-out-of-forwards", LONG, 20, confident(forwards_max=6), None),
    ("one-forward", SHORT, 20, confident(forwards_max=1), None),
    ("short-canvases", LONG, 22, confident(least_tokens=4, most_tokens=10), None),
    ("one-token-prompt", [7], 18, confident(), None),
    ("stop", LONG, 40, confident(), ("confident-past-the-window", 2)),
    ("stop-in-the-second-canvas", LONG, 40, confident(), ("confident-past-the-window", 19)),
]
PACKED_CASES = ["entropy", "confident-past-the-window", "short-canvases"]


def noise(draw, places):
    """Draw number `draw` of a request: SplitMix64's finalizer, the draw above and the place below."""
    mask = 2**64 - 1

    def token(place):
        z = ((draw << 32) + place + 0x9E3779B97F4A7C15) & mask
        for shift, factor in [(30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)]:
            z = ((z ^ (z >> shift)) * factor) & mask
        return (z ^ (z >> 31)) % VOCAB

    return [token(place) for place in range(places)]


def values(name, shape):
    """Numbers that depend on the name alone.

    Denoising feeds each forward's rounding into the next, and a lively model makes another token of it within
    some forwards. What layers add is therefore small, and the last norm's weights have no sign in common: otherwise
    the tied head would repeat its input.
    """
    seed = int.from_bytes(hashlib.sha256(f"diffusion/{name}".encode()).digest()[:8], "big")
    drawn = np.random.Generator(np.random.PCG64(seed)).standard_normal(shape)
    if name == "model.decoder.norm.weight":
        return drawn
    if name.endswith("norm.weight") or "layernorm" in name:
        ends_branch = name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight"))
        return (0.35 if ends_branch else 1.0) * (1 + 0.2 * drawn)
    if name.rsplit(".")[-1] in ("layer_scalar", "per_expert_scale", "scale") or "feedforward_layernorm" in name:
        return 1 + 0.2 * drawn
    if "embed_tokens" in name:
        return 0.8 * drawn
    gain = 0.6 if "self_conditioning" in name else 1.6
    return gain * drawn / np.sqrt(shape[-1])


def hub_name(name):
    for stack in ("experts.gate_up_proj", "experts.down_proj"):
        name = name.replace(f"{stack}.weight", stack)
    return name


def build():
    package = importlib.import_module("mlx_vlm.models.diffusion_gemma")
    model = package.Model(package.ModelConfig.from_dict(json.loads(json.dumps(WHOLE))))
    stored = {}
    for name, parameter in tree_flatten(model.parameters()):
        drawn = values(name, parameter.shape).astype(np.float32)
        stored[hub_name(name)] = mx.array(drawn).astype(mx.bfloat16)
    exact = {name: array.astype(mx.float32) for name, array in stored.items()}
    model.load_weights(list(model.sanitize(exact).items()), strict=True)
    return model, stored


def pack(model):
    """Experts in 4 bits, all else in 8, named one by one; the router stays dense."""
    named = {}

    def how(path, module):
        if not hasattr(module, "to_quantized") or "router" in path:
            return False
        if ".experts." in path:
            return True
        named[path] = dict(group_size=GROUP, bits=8)
        return named[path]

    nn.quantize(model, group_size=GROUP, bits=4, class_predicate=how)
    return dict(group_size=GROUP, bits=4) | named


class Words:
    """As much of a tokenizer as the generator asks for."""

    last_segment = ""

    def __init__(self, stops):
        self.stops = set(stops)
        self.stopping_criteria = self
        self.detokenizer = self

    def __call__(self, token):
        return token in self.stops

    def add_eos_token_ids(self, ids):
        self.stops.update([ids] if isinstance(ids, int) else ids)

    def reset(self):
        pass

    finalize = reset

    def add_token(self, token, **_):
        pass

    def decode(self, tokens, **_):
        return ""


class Watch:
    """Puts our noise into the library and takes down what its forwards find."""

    def __init__(self, library, model):
        self.draws, self.forwards = 0, []
        self.places = [
            (library, "_diffusion_initialize_canvas", self.initialize),
            (library, "_diffusion_confidence_transfer_mask", self.noting_mask),
            (library, "_diffusion_entropy_transfer_mask", self.noting_mask),
            (type(model), "diffusion_decoder_logits", self.noting_logits),
        ]

    def __enter__(self):
        self.originals = [getattr(owner, name) for owner, name, _ in self.places]
        for (owner, name, wrap), original in zip(self.places, self.originals):
            setattr(owner, name, wrap(original))
        return self

    def __exit__(self, *_):
        for (owner, name, _), original in zip(self.places, self.originals):
            setattr(owner, name, original)

    def initialize(self, _):
        def draw(batch, places, vocabulary, dtype):
            assert (batch, vocabulary) == (1, VOCAB)
            self.draws += 1
            return mx.array([noise(self.draws - 1, places)], dtype=dtype)

        return draw

    def noting_mask(self, original):
        def accept(*arguments, **options):
            mask = original(*arguments, **options)
            self.forwards[-1]["accepted"] = np.flatnonzero(np.array(mask[0])).tolist()
            return mask

        return accept

    def noting_logits(self, original):
        def forward(*arguments, **options):
            logits = original(*arguments, **options)
            found = logits[0]
            self.forwards.append(
                dict(
                    best=mx.argmax(found, -1).tolist(),
                    logit=round(float(mx.max(found)), 6),
                    least=round(float(mx.min(found)), 6),
                    accepted=[],
                )
            )
            return logits

        return forward


def run(library, model, case, stops):
    name, prompt, max_tokens, asked, _ = case
    by_entropy = asked["acceptance"] == "entropy"
    model.config.generation_config = GENERATION | dict(
        stability_threshold=asked["stable_forwards"],
        confidence_threshold=asked["mean_entropy_below"],
        sampler_config=dict(entropy_bound=asked["bound"] if by_entropy else 0.1),
    )
    words, tokens, finish = Words(stops), [], None
    with Watch(library, model) as watch:
        told = library.stream_diffusion_generate(
            model,
            words,
            words,
            mx.array([prompt]),
            None,
            None,
            max_tokens=max_tokens,
            skip_special_token_ids=[],
            temperature=0.0,
            max_denoising_steps=asked["forwards_max"],
            diffusion_sampler="entropy-bound" if by_entropy else "confidence-threshold",
            diffusion_threshold=None if by_entropy else asked["bound"],
            diffusion_min_canvas_length=asked["least_tokens"],
            diffusion_max_canvas_length=asked["most_tokens"],
        )
        for event in told:
            finish = event.finish_reason or finish
            said = not event.finish_reason and not event.diffusion_block_complete
            # A stop token is told with the end alone.
            if said or event.finish_reason == "stop":
                tokens.append(int(event.token))
    print(f"{name:28} {finish:6} {len(watch.forwards):3} forwards {tokens[:12]}")
    return dict(
        name=name,
        prompt=prompt,
        max_tokens=max_tokens,
        rules=asked,
        stop_tokens=stops,
        tokens=tokens,
        finish=finish,
        forwards=watch.forwards,
    )


def first_new(tokens, start):
    return next(token for place, token in enumerate(tokens) if place >= start and token not in tokens[:place])


def run_all(model, names):
    library = importlib.import_module("mlx_vlm.generate.diffusion")
    made = {}
    for case in CASES:
        if names is None or case[0] in names:
            stops = [first_new(made[case[4][0]]["tokens"], case[4][1])] if case[4] else []
            made[case[0]] = run(library, model, case, stops)
    return list(made.values())


def write(directory, config, stored, cases):
    directory.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(directory / "model.safetensors"), stored, {"format": "mlx"})
    versions = {name: importlib.metadata.version(name) for name in ["mlx", "mlx-vlm"]}
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(GENERATION, indent=1) + "\n")
    # A forward a line.
    lines = json.dumps(dict(versions=versions, cases=cases), separators=(",", ":"))
    (directory / "denoising.json").write_text(lines.replace('{"best"', '\n{"best"') + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", type=Path)
    directory = arguments.parse_args().directory
    mx.set_default_device(mx.cpu)
    model, stored = build()
    write(directory / "diffusion_gemma-tiny", WHOLE, stored, run_all(model, None))
    quantization = pack(model)
    packed = {
        name: array if array.dtype == mx.uint32 else array.astype(mx.bfloat16)
        for name, array in tree_flatten(model.parameters())
    }
    model.load_weights(
        [(name, array if array.dtype == mx.uint32 else array.astype(mx.float32)) for name, array in packed.items()]
    )
    config = WHOLE | dict(quantization=quantization)
    write(directory / "diffusion_gemma-tiny-4bit", config, packed, run_all(model, PACKED_CASES))


if __name__ == "__main__":
    main()
