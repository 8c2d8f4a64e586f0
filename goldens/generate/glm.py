"""GLM with latent attention: GLM-4.7-Flash (glm4_moe_lite) and GLM-5 (glm_moe_dsa). Sizes differ wherever a
mix-up would otherwise fit."""

import mlx.core as mx

LITE = dict(
    architectures=["Glm4MoeLiteForCausalLM"],
    model_type="glm4_moe_lite",
    num_hidden_layers=3,
    num_key_value_heads=4,
    moe_intermediate_size=16,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=3,
    routed_scaling_factor=1.8,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    moe_layer_freq=1,
    first_k_dense_replace=1,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=12,
    qk_rope_head_dim=4,
    v_head_dim=20,
    attention_bias=False,
    rope_theta=100000.0,
    rope_scaling=None,
)
DSA = dict(
    {name: value for name, value in LITE.items() if not name.startswith("rope_")},
    architectures=["GlmMoeDsaForCausalLM"],
    model_type="glm_moe_dsa",
    n_group=4,
    topk_group=2,
    # With fewer heads scores tie, and what is chosen then is up to the sort.
    index_n_heads=8,
    index_head_dim=8,
    index_topk=12,
    indexer_rope_interleave=True,
    rope_parameters=dict(rope_theta=100000.0, rope_type="default"),
)
# What divides into groups of 32.
PACKABLE = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    moe_intermediate_size=32,
    q_lora_rank=32,
    kv_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=8,
    v_head_dim=32,
)
YARN = dict(
    rope_type="deepseek_yarn",
    factor=4.0,
    original_max_position_embeddings=64,
    mscale=0.7,
    mscale_all_dim=0.5,
)


def affine(bits, group_size):
    return dict(group_size=group_size, bits=bits, mode="affine")


QUANTIZED = {
    "glm4_moe_lite-tiny-4bit": (
        affine(4, 32),
        {"model.layers.0.self_attn.embed_q": affine(8, 32), "lm_head": affine(6, 64)},
    ),
    "glm_moe_dsa-tiny-4bit": (affine(4, 32), {}),
}

# Layers with the two matrices of latent attention in one, as they are published; mlx-lm splits them.
JOINED = {"glm_moe_dsa-tiny": range(6), "glm_moe_dsa-tiny-4bit": [1]}

# Dense experts, which MLX multiplies in f32 only on the CPU.
F32_ONLY = {"glm4_moe_lite-tiny", "glm_moe_dsa-tiny"}


def configs(small):
    """Checkpoints of `small` models otherwise; without experts all of it runs in bf16 on a processor."""
    lite, dsa = dict(small, **LITE), dict(small, **DSA)
    del dsa["rope_theta"]
    return {
        "glm4_moe_lite-tiny": lite,
        "glm4_moe_lite-tiny-dense": dict(
            lite,
            num_hidden_layers=2,
            first_k_dense_replace=2,
            q_lora_rank=None,
            attention_bias=True,
            rope_scaling=YARN,
        ),
        "glm4_moe_lite-tiny-4bit": dict(lite, **PACKABLE),
        "glm_moe_dsa-tiny": dict(dsa, num_hidden_layers=5, num_nextn_predict_layers=1),
        "glm_moe_dsa-tiny-dense": dict(dsa, num_hidden_layers=2, first_k_dense_replace=2),
        "glm_moe_dsa-tiny-4bit": dict(dsa, **PACKABLE, index_head_dim=32),
    }


def with_predicting_layers(config):
    """What mlx-lm is to build: a layer that predicts is one more block, and what `prediction` adds."""
    layers = config.get("num_nextn_predict_layers", 0)
    if not layers:
        return config
    return dict(config, num_hidden_layers=config["num_hidden_layers"] + layers)


def prediction(config):
    """Shapes of the tensors that a layer which predicts has beside those of a block, by name."""
    if not config.get("num_nextn_predict_layers"):
        return {}
    path, hidden = f"model.layers.{config['num_hidden_layers']}", config["hidden_size"]
    shapes = {f"{path}.{name}.weight": (hidden,) for name in ["enorm", "hnorm", "shared_head.norm"]}
    return dict(shapes, **{f"{path}.eh_proj.weight": (hidden, 2 * hidden)})


def join(weights, name, config):
    """Puts kv_b_proj in the place of embed_q and unembed_out, packed as they are."""
    for layer in JOINED.get(name, []):
        path = f"model.layers.{layer}.self_attn"
        keys, values = (plain(weights, f"{path}.{part}", config) for part in ["embed_q", "unembed_out"])
        rows = mx.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(-1, config["kv_lora_rank"])
        parts = [rows]
        if name in QUANTIZED:
            parts = mx.quantize(rows, **QUANTIZED[name][0])
        for part, array in zip(["weight", "scales", "biases"], parts):
            weights[f"{path}.kv_b_proj.{part}"] = array


def plain(weights, path, config):
    """The matrix that `weights` loses, unpacked if it was packed."""
    parts = [weights.pop(f"{path}.{part}", None) for part in ["weight", "scales", "biases"]]
    if parts[1] is None:
        return parts[0]
    general = config["quantization"]
    return mx.dequantize(*parts, group_size=general["group_size"], bits=general["bits"])


def mend(model):
    """Undoes what mlx-lm has otherwise than the models were trained: the norm of index keys adds 1e-6
    under the root, not the default of MLX's layers."""
    for layer in model.layers:
        indexer = getattr(getattr(layer, "self_attn", None), "indexer", None)
        if indexer is not None:
            indexer.k_norm.eps = 1e-6
