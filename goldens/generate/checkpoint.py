"""Tiny random-weight checkpoints in the layout that mlx-lm loads.

Weights are drawn from PCG64 seeded by the parameter's name, so every machine makes the same ones.
Their scales are chosen so that greedy output wanders: a random model with a loud embedding echoes
its input, and one with quiet layers falls into a loop.
"""

import copy
import hashlib
import json
import re
from pathlib import Path

import gemma4
import glm
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

VOCAB = 288
SPECIAL_TOKENS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
MERGES = [
    ("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("a", "n"), ("an", "d"),
    ("Ġ", "and"), ("e", "r"), ("o", "n"), ("r", "e"), ("o", "u"), ("Ġ", "a"), ("Ġ", "s"),
    ("Ġ", "w"), ("s", "t"), ("e", "n"), ("o", "r"), ("Ġ", "o"), ("Ġo", "f"), ("a", "t"),
    ("Ġ", "t"), ("Ġt", "o"), ("l", "l"),
]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
    bos_token_id=256,
    eos_token_id=[257, 259],
)

# Narrow, with heads that are wider together than the residual stream, as Gemma's are. Numbers that the
# real models all share differ here, so that a default cannot stand in for one that is read.
GEMMA = dict(
    LLAMA,
    architectures=["GemmaForCausalLM"],
    model_type="gemma",
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_key_value_heads=1,
    rms_norm_eps=1e-6,
    rope_theta=5000.0,
    tie_word_embeddings=True,
)
GEMMA3 = dict(
    GEMMA,
    architectures=["Gemma3ForCausalLM"],
    model_type="gemma3_text",
    num_hidden_layers=3,
    rope_theta=50000.0,
    rope_local_base_freq=1000.0,
    rope_scaling=dict(rope_type="linear", factor=4.0),
    query_pre_attn_scalar=24,
    sliding_window=8,
    sliding_window_pattern=3,
)

CONFIGS = {
    "llama-tiny": LLAMA,
    "llama-tiny-rope": dict(
        LLAMA,
        intermediate_size=96,
        num_hidden_layers=2,
        num_key_value_heads=1,
        rope_theta=500000.0,
        rope_scaling=dict(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
    ),
    "llama-tiny-4bit": dict(LLAMA, num_hidden_layers=2),
    "llama-tiny-sliding": dict(
        LLAMA,
        intermediate_size=96,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=8,
    ),
    # Heads wide enough for groups of 128 quantized values, on a narrow residual stream.
    "llama-tiny-wide": dict(LLAMA, hidden_size=24, intermediate_size=48, head_dim=128),
    "gemma-tiny": GEMMA,
    "gemma2-tiny": dict(
        GEMMA,
        architectures=["Gemma2ForCausalLM"],
        model_type="gemma2",
        num_key_value_heads=2,
        num_hidden_layers=3,
        query_pre_attn_scalar=4,
        attn_logit_softcapping=6.0,
        final_logit_softcapping=0.5,
    ),
    "gemma3-tiny": GEMMA3,
    "gemma3-tiny-untied": dict(
        GEMMA3,
        num_hidden_layers=2,
        sliding_window_pattern=2,
        layer_types=["sliding_attention", "full_attention"],
        rope_scaling=None,
        tie_word_embeddings=False,
    ),
}

CONFIGS.update(gemma4.configs(VOCAB))

# Two layers of each further family, narrow.
SMALL = dict(
    LLAMA,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_key_value_heads=2,
    head_dim=8,
)
SLIDING = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=8)


def dense(model_type, without=(), **fields):
    config = dict(SMALL, model_type=model_type, architectures=[f"{model_type}ForCausalLM"], **fields)
    return {name: value for name, value in config.items() if name not in without}


def yarn(kind="yarn", **fields):
    return dict(rope_type=kind, factor=4.0, original_max_position_embeddings=64, **fields)


MINICPM3 = dense(
    "minicpm3",
    without=["head_dim"],
    num_key_value_heads=4,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=6,
    qk_rope_head_dim=4,
    attention_bias=True,
    dim_model_base=12,
    scale_depth=1.4,
    scale_emb=1.7,
    rope_scaling=dict(
        type="longrope",
        original_max_position_embeddings=64,
        short_factor=[1.0] * 2,
        long_factor=[1.3, 4.1],
    ),
)

# Every rope kind is in one of them.
DENSE = {
    "mistral-tiny": dense("mistral", rope_scaling=dict(type="linear", factor=4.0)),
    "llama-tiny-dynamic": dense(
        "llama", rope_scaling=dict(rope_type="dynamic", factor=5.0), max_position_embeddings=12
    ),
    "ministral3-tiny": dense(
        "ministral3",
        without=["rope_theta"],
        rope_parameters=dict(
            yarn(beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
            original_max_position_embeddings=8,
            rope_theta=1000000.0,
            llama_4_scaling_beta=0.3,
        ),
        **SLIDING,
    ),
    "qwen2-tiny": dense("qwen2", without=["head_dim"], rope_scaling=yarn()),
    "qwen3-tiny": dense(
        "qwen3",
        head_dim=16,
        intermediate_size=96,
        rope_scaling=yarn("deepseek_yarn", beta_fast=8, beta_slow=2, mscale=0.7, mscale_all_dim=0.2),
    ),
    "smollm3-tiny": dense("smollm3", num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
    "phi3-tiny": dense(
        "phi3",
        without=["head_dim"],
        hidden_size=64,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=64,
        rope_scaling=dict(
            type="longrope",
            short_factor=[1.0] * 6,
            long_factor=[1.1, 1.3, 1.7, 2.5, 4.1, 7.3],
        ),
    ),
    "granite-tiny": dense(
        "granite",
        without=["head_dim"],
        attention_bias=True,
        mlp_bias=False,
        attention_multiplier=0.3,
        embedding_multiplier=3.0,
        residual_multiplier=0.7,
        logits_scaling=3.0,
    ),
    "minicpm-tiny": dense(
        "minicpm",
        without=["head_dim"],
        dim_model_base=12,
        scale_depth=1.4,
        scale_emb=1.7,
        rope_scaling=dict(
            rope_type="longrope",
            original_max_position_embeddings=64,
            short_factor=[1.0] * 4,
            long_factor=[1.2, 1.9, 3.1, 5.7],
        ),
    ),
    "glm4-tiny": dense("glm4", attention_bias=True, partial_rotary_factor=0.5),
    "minicpm3-tiny": MINICPM3,
    "olmo3-tiny": dense("olmo3", rope_scaling=yarn(attention_factor=1.2), **SLIDING),
}
CONFIGS.update(DENSE)
CONFIGS.update({
    "llama-tiny-proportional": dense(
        "llama",
        rope_scaling=dict(rope_type="proportional", partial_rotary_factor=0.5, factor=2.0),
    ),
    "llama-tiny-mrope": dense("llama", rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1])),
    "glm4-tiny-4bit": dense("glm4", attention_bias=False, partial_rotary_factor=0.75),
    "minicpm3-tiny-4bit": dict(
        MINICPM3, q_lora_rank=32, kv_lora_rank=32, attention_bias=False, tie_word_embeddings=True
    ),
})

# Mixtures of experts; enough of them are chosen that prompts of more than 21 tokens are sorted by expert.
QWEN3_MOE = dense(
    "qwen3_moe",
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    norm_topk_prob=False,
)
GPT_OSS = dense(
    "gpt_oss",
    num_local_experts=8,
    num_experts_per_tok=3,
    head_dim=16,
    rope_scaling=yarn(beta_fast=32.0, beta_slow=1.0, truncate=False),
    **SLIDING,
)
MIXTURES = {
    "qwen3_moe-tiny": dict(
        QWEN3_MOE, num_hidden_layers=3, mlp_only_layers=[1], norm_topk_prob=True
    ),
    "qwen3_moe-tiny-4bit": dict(QWEN3_MOE, hidden_size=64, head_dim=16),
    "gpt_oss-tiny": dict(GPT_OSS, intermediate_size=32),
    "gpt_oss-tiny-mxfp4": GPT_OSS,
    "gpt_oss-tiny-mxfp4-q8": dict(GPT_OSS, hidden_size=64),
}
CONFIGS.update(MIXTURES)

# Checkpoints as they are published; mlx-lm brings them into its own layout.
UNSTACKED = {"qwen3_moe-tiny", "glm_moe_dsa-tiny"}
IN_BLOCKS = {"gpt_oss-tiny-mxfp4"}


def qwen3_5(model_type="qwen3_5", tie_word_embeddings=False, **fields):
    """Linear layers, every second or third one full; the last may be either."""
    text = dict(
        SMALL,
        model_type=f"{model_type}_text",
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=12,
        linear_conv_kernel_dim=4,
        rope_parameters=dict(
            rope_type="default",
            rope_theta=200000.0,
            partial_rotary_factor=0.25,
            mrope_section=[2, 1, 1],
            mrope_interleaved=True,
        ),
        tie_word_embeddings=tie_word_embeddings,
    )
    text.update(fields)
    for name in ["architectures", "rope_theta", "torch_dtype"]:
        del text[name]
    interval = text["full_attention_interval"]
    text["layer_types"] = [
        "linear_attention" if layer % interval else "full_attention"
        for layer in range(1, text["num_hidden_layers"] + 1)
    ]
    return dict(
        architectures=["Qwen3_5ForConditionalGeneration"],
        model_type=model_type,
        text_config=text,
        tie_word_embeddings=tie_word_embeddings,
        vision_config=dict(model_type=model_type, depth=1, hidden_size=8),
    )


FOR_GROUPS_OF_64 = dict(
    num_hidden_layers=2,
    full_attention_interval=2,
    hidden_size=64,
    linear_value_head_dim=16,
)
EXPERTS = dict(
    num_experts=6,
    num_experts_per_tok=3,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=24,
)
QWEN3_5 = {
    "qwen3_5-tiny": qwen3_5(
        num_hidden_layers=5, full_attention_interval=2, tie_word_embeddings=True
    ),
    "qwen3_5-tiny-hub": qwen3_5(num_hidden_layers=3, full_attention_interval=3),
    "qwen3_5-tiny-4bit": qwen3_5(**FOR_GROUPS_OF_64, intermediate_size=128),
    "qwen3_5_moe-tiny-hub": qwen3_5(
        "qwen3_5_moe", **EXPERTS, num_hidden_layers=3, full_attention_interval=2
    ),
    "qwen3_5_moe-tiny-4bit": qwen3_5(
        "qwen3_5_moe",
        **FOR_GROUPS_OF_64,
        **dict(EXPERTS, moe_intermediate_size=64, shared_expert_intermediate_size=64),
    ),
}
for config in QWEN3_5.values():
    if "num_experts" in config["text_config"]:
        del config["text_config"]["intermediate_size"]
CONFIGS.update(QWEN3_5)

# Checkpoints in the layout in which Qwen3.5 is published.
FROM_HUB = {"qwen3_5-tiny-hub", "qwen3_5_moe-tiny-hub"}


CONFIGS.update(glm.configs(SMALL))


def affine(bits, group_size):
    return dict(group_size=group_size, bits=bits, mode="affine")


MXFP4 = dict(group_size=32, bits=4, mode="mxfp4")
GPT_OSS_DENSE = [
    *[f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qkvo"],
    *[f"model.layers.{layer}.mlp.router" for layer in range(2)],
    "lm_head",
]


# How a quantized checkpoint packs its modules: in general, and those that differ. Embeddings stay dense
# where they are not named.
QUANTIZED = {
    "llama-tiny-4bit": (
        affine(4, 64),
        {"model.layers.0.mlp.down_proj": affine(4, 32), "lm_head": affine(8, 32)},
    ),
    # mlx-lm itself gives routers 8 bits.
    "qwen3_moe-tiny-4bit": (
        affine(4, 32),
        {f"model.layers.{layer}.mlp.gate": affine(8, 64) for layer in range(2)},
    ),
    **{name: (affine(4, 32), others) for name, others in gemma4.QUANTIZED.items()},
    "qwen3_5-tiny-4bit": (
        affine(4, 64),
        {
            "language_model.model.layers.0.linear_attn.in_proj_a": affine(8, 32),
            "language_model.lm_head": affine(8, 32),
        },
    ),
    "qwen3_5_moe-tiny-4bit": (
        affine(4, 64),
        {
            f"language_model.model.layers.{layer}.mlp.{name}": affine(8, 64)
            for layer in range(2)
            for name in ["gate", "shared_expert_gate"]
        },
    ),
    # Published so; the config names the method and nothing else.
    "gpt_oss-tiny-mxfp4": (MXFP4, {name: False for name in GPT_OSS_DENSE}),
    # A mode that an entry leaves out is affine, whatever the general one is.
    "gpt_oss-tiny-mxfp4-q8": (
        MXFP4,
        {name: dict(group_size=64, bits=8) for name in [*GPT_OSS_DENSE, "model.embed_tokens"]},
    ),
}

QUANTIZED.update({name: (affine(4, 32), {}) for name in ["glm4-tiny-4bit", "minicpm3-tiny-4bit"]})

# The other families in 4 bits; where their widths do not divide into groups, or answers fall into loops,
# they have others.
IN_4_BITS = {
    "gemma-tiny": dict(hidden_size=64),
    "gemma2-tiny": dict(hidden_size=64, intermediate_size=128),
    "gemma3-tiny": dict(hidden_size=64, num_hidden_layers=5),
    "granite-tiny": {},
    "minicpm-tiny": {},
    "ministral3-tiny": {},
    "mistral-tiny": {},
    "olmo3-tiny": {},
    "phi3-tiny": {},
    "qwen2-tiny": dict(hidden_size=64),
    "qwen3-tiny": {},
    "smollm3-tiny": {},
}
CONFIGS.update({f"{name}-4bit": dict(CONFIGS[name], **fields) for name, fields in IN_4_BITS.items()})
QUANTIZED.update({f"{name}-4bit": (affine(4, 32), {}) for name in IN_4_BITS})

# One checkpoint for each width and mode that the others lack, its embedding packed too. Each names
# layers in another way.
PACKED = {
    "llama-tiny-2bit": (
        affine(2, 32),
        {"model.embed_tokens": affine(6, 32), "lm_head": False},
    ),
    "llama-tiny-3bit": (
        affine(3, 32),
        {
            "model.embed_tokens": True,
            **{f"model.layers.{layer}.self_attn.v_proj": affine(6, 32) for layer in range(2)},
            "model.layers.1.mlp.down_proj": affine(5, 64),
        },
    ),
    "llama-tiny-5bit": (affine(5, 32), {"model.embed_tokens": affine(4, 32)}),
    "llama-tiny-6bit": (affine(6, 32), {"model.embed_tokens": True, "model.layers.0.mlp.up_proj": False}),
    "llama-tiny-8bit": (affine(8, 32), {"model.embed_tokens": True}),
    "llama-tiny-mxfp4": (MXFP4, {"model.embed_tokens": True}),
    "llama-tiny-mxfp8": (
        dict(group_size=32, bits=8, mode="mxfp8"),
        {"model.embed_tokens": True, "lm_head": dict(mode="mxfp4")},
    ),
    "llama-tiny-nvfp4": (
        dict(group_size=16, bits=4, mode="nvfp4"),
        {"model.embed_tokens": True, "model.layers.1.self_attn.q_proj": affine(8, 32)},
    ),
}
# Some have the embedding as their head.
TIED = ["llama-tiny-3bit", "llama-tiny-mxfp4"]
CONFIGS.update({name: dense("llama", tie_word_embeddings=name in TIED) for name in PACKED})
QUANTIZED.update(PACKED)
QUANTIZED.update(glm.QUANTIZED)

# Where the general format that config.json tells is none that a layer has: mlx-lm goes by the shapes of
# layers that it does not name.
MISTOLD = {"llama-tiny-8bit": affine(4, 64)}

# Which weights of a model type are drawn, where the first ones fall into loops.
SEEDS = {
    "gemma2": 1, "gemma3_text": 10, "gemma4": 1, "glm4_moe_lite": 2, "glm_moe_dsa": 2, "gpt_oss": 4,
    "mistral": 3, "olmo3": 1, "qwen3_moe": 2, "smollm3": 2,
}


def build(config):
    """An mlx-lm model of `config` with its weights in bf16."""
    config = glm.with_predicting_layers(config)
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(copy.deepcopy(config)))
    if config["tie_word_embeddings"] and hasattr(model, "sanitize"):
        # Some families tell a tied head by the tensor that the checkpoint lacks.
        model.sanitize({})
    weights = [
        (name, mx.array(draw(name, parameter.shape, config)).astype(
            mx.bfloat16 if is_cast(model, name) else mx.float32
        ))
        for name, parameter in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return model


def is_cast(model, name):
    """Whether mlx-lm's converter casts the parameter to the model's type."""
    return not hasattr(model, "cast_predicate") or model.cast_predicate(name)


def draw(name, shape, config):
    is_gemma4 = config["model_type"].startswith("gemma4")
    is_gemma = config["model_type"].startswith("gemma")
    seeded = f"slipstream{SEEDS.get(config['model_type'], '')}:{name}"
    seed = int.from_bytes(hashlib.sha256(seeded.encode()).digest()[:8], "little")
    normal = np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(np.float32)
    if is_gemma4 and ("norm" in name or name.endswith(("scalar", "scale"))):
        # Of mean 0, the last norm keeps the tied head from echoing its input.
        return 0.3 * normal + np.float32(0.0 if name.endswith("model.norm.weight") else 1.0)
    if name.endswith("norm.weight"):
        # Gemma's checkpoints hold how far the weights are from 1. Where attention's result has a norm of
        # its own, it would drown what tells tokens apart.
        is_loud = is_gemma and config["model_type"] != "gemma" and "post_attention" in name
        return 0.3 * normal + np.float32(-0.6 if is_loud else 0.0 if is_gemma else 1.0)
    if name.endswith((".bias", "e_score_correction_bias")):
        return 0.1 * normal
    if name.endswith("A_log") or name.endswith("dt_bias"):
        # Memories that fade within some tokens, and others that hardly do.
        return normal - np.float32(1.0)
    if name.endswith("conv1d.weight"):
        return normal * np.float32(1.7 / np.sqrt(shape[1]))
    if "embed_tokens" in name:
        # Gemma multiplies it by the root of the hidden size.
        scale = 0.04 if is_gemma else 0.2 if config["tie_word_embeddings"] else 0.6
        return scale * normal
    return normal * np.float32(1.7 / np.sqrt(shape[-1]))


def quantize(model, config, general, others):
    """Quantizes the modules in place; embeddings stay dense unless named. Returns config.json."""

    def how(path, module):
        if path in others:
            return others[path]
        return hasattr(module, "to_quantized") and "embed_tokens" not in path

    nn.quantize(model, **general, class_predicate=how)
    mx.eval(model.parameters())
    quantization = dict(general, **others)
    return dict(config, quantization=quantization, quantization_config=quantization)


def write(directory: Path, model, config, name):
    """Writes the checkpoint: config, weights and tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(model.parameters()))
    kind = "mlx"
    glm.join(weights, name, config)
    for added, shape in glm.prediction(config).items():
        weights[added] = mx.array(draw(added, shape, config)).astype(mx.bfloat16)
    if name in UNSTACKED:
        weights = unstacked(weights)
    if name in gemma4.ON_HUB:
        weights = gemma4.as_on_hub(weights, config["text_config"])
    if name in FROM_HUB:
        weights, kind = in_layout_of_the_hub(weights), "pt"
    if name in IN_BLOCKS:
        weights = in_blocks(weights)
        config = {key: value for key, value in config.items() if key != "quantization"}
        config["quantization_config"] = dict(quant_method="mxfp4")
    if name in MISTOLD:
        config = dict(config, quantization=MISTOLD[name], quantization_config=MISTOLD[name])
    write_json(directory / "config.json", config)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": kind})
    write_json(directory / "tokenizer.json", tokenizer())
    write_json(
        directory / "tokenizer_config.json",
        dict(
            tokenizer_class="PreTrainedTokenizerFast",
            bos_token="<s>",
            eos_token="<|im_end|>",
            clean_up_tokenization_spaces=False,
            chat_template=CHAT_TEMPLATE,
        ),
    )


def unstacked(weights):
    """The same with `experts.N` for each entry of `switch_mlp`."""
    apart = {}
    for name, array in weights.items():
        if ".switch_mlp." not in name:
            apart[name] = array
            continue
        for expert in range(array.shape[0]):
            apart[name.replace(".switch_mlp.", f".experts.{expert}.")] = mx.contiguous(array[expert])
    return apart


def in_layout_of_the_hub(weights):
    """A Qwen3.5 checkpoint as its makers publish it: other names, the convolution's axes in another order,
    norm weights around 0, and tensors of parts that are not run."""
    stored = {}
    for name, weight in weights.items():
        if "switch_mlp.up_proj" in name:
            continue
        if "switch_mlp.gate_proj" in name:
            weight = mx.concatenate([weight, weights[name.replace("gate_proj", "up_proj")]], axis=1)
        if name.endswith("conv1d.weight"):
            weight = weight.moveaxis(2, 1)
        if name.endswith("norm.weight") and "linear_attn" not in name:
            weight = weight - 1.0
        stored[name_of_the_hub(name)] = weight
    ones = mx.ones((4, 4), mx.bfloat16)
    for name in ["model.visual.blocks.0.attn.qkv.weight", "mtp.layers.0.self_attn.q_proj.weight"]:
        stored[name] = ones
    stored["mtp.layers.0.input_layernorm.weight"] = ones[0]
    return stored


def name_of_the_hub(name):
    if name.startswith("language_model.model."):
        name = name.replace("language_model.model.", "model.language_model.", 1)
    name = name.removeprefix("language_model.")
    name = name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")
    return name.replace("switch_mlp.down_proj.weight", "experts.down_proj")


def in_blocks(weights):
    """gpt-oss's experts with gate and up by turns, and packed words as blocks of 16 bytes."""
    folded = {name: array for name, array in weights.items() if ".experts." not in name}
    for name, array in weights.items():
        if ".experts." not in name or ".up_proj." in name:
            continue
        if ".gate_proj." in name:
            # Row by row, gate first.
            array = mx.stack([array, weights[name.replace("gate_proj", "up_proj")]], axis=2)
            array = array.flatten(1, 2)
            name = name.replace("gate_proj", "gate_up_proj")
        if name.endswith(".weight"):
            array = mx.unflatten(array.view(mx.uint8), -1, (-1, 16))
        part = dict(weight="_blocks", scales="_scales", bias="_bias")
        stem, _, end = name.rpartition(".")
        folded[stem + part[end]] = mx.contiguous(array)
    return folded


def write_json(path: Path, value):
    """Indented JSON, with lists of numbers on one line."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = re.sub(r"\[\n[\s\d.,e-]+\]", lambda match: "".join(match[0].split()), text)
    path.write_text(text + "\n", encoding="utf-8")


def tokenizer():
    """tokenizer.json: byte-level BPE, ids 0..255 the bytes in the order of their characters."""
    names = sorted(byte_characters()) + SPECIAL_TOKENS + ADDED_TOKENS
    vocab = {name: number for number, name in enumerate(names)}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    assert len(vocab) == VOCAB, len(vocab)
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=[
            dict(
                id=vocab[name], content=name, single_word=False, lstrip=False, rstrip=False,
                normalized=False, special=name in SPECIAL_TOKENS,
            )
            for name in SPECIAL_TOKENS + ADDED_TOKENS
        ],
        normalizer=None,
        pre_tokenizer=byte_level,
        post_processor=None,
        decoder=byte_level,
        model=dict(
            type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
            end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False,
            vocab=vocab, merges=[list(pair) for pair in MERGES],
        ),
    )


def byte_characters():
    """The characters that spell the 256 bytes in GPT-2's vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(code) for code in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
