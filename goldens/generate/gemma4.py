"""Gemma 4's text part in each of its shapes, with heads wide enough for groups of 32 quantized values."""

import mlx.core as mx

TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
TEXT = dict(
    model_type="gemma4_text",
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    global_head_dim=64,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    rope_parameters=dict(
        full_attention=dict(
            partial_rotary_factor=0.25, rope_theta=50000.0, rope_type="proportional"
        ),
        sliding_attention=dict(rope_theta=1000.0, rope_type="default"),
    ),
    layer_types=TYPES,
    sliding_window=8,
    num_kv_shared_layers=0,
    hidden_size_per_layer_input=0,
    attention_k_eq_v=True,
    num_global_key_value_heads=1,
    final_logit_softcapping=4.0,
    use_double_wide_mlp=False,
    enable_moe_block=False,
    hidden_activation="gelu_pytorch_tanh",
    use_bidirectional_attention="vision",
    tie_word_embeddings=True,
)
# Layers 3, 4 and 5 attend to the columns of layers 1, 1 and 2.
E4B = dict(
    num_hidden_layers=6,
    layer_types=TYPES * 2,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_k_eq_v=False,
    num_global_key_value_heads=None,
    num_kv_shared_layers=3,
    hidden_size_per_layer_input=8,
    use_double_wide_mlp=True,
)
# So many experts are chosen that prompts of more than 21 tokens are sorted by expert.
A4B = dict(
    num_hidden_layers=2,
    layer_types=TYPES[1:],
    enable_moe_block=True,
    num_experts=8,
    top_k_experts=3,
    moe_intermediate_size=32,
)
ENDS = dict(torch_dtype="bfloat16", bos_token_id=256, eos_token_id=[257, 259])

# These are written in Hugging Face's layout, the other ones in MLX's.
ON_HUB = ["gemma4-e4b-tiny", "gemma4-26b-tiny"]

# What differs in checkpoints of 4 bits: mlx-lm itself gives routers 8 bits.
EMBEDDING = dict(group_size=32, bits=4, mode="affine")
ROUTER = dict(group_size=64, bits=8, mode="affine")
QUANTIZED = {
    "gemma4-e4b-tiny-4bit": {
        f"language_model.model.{name}": EMBEDDING
        for name in ["embed_tokens", "embed_tokens_per_layer"]
    },
    "gemma4-26b-tiny-4bit": {
        "language_model.model.embed_tokens": EMBEDDING,
        **{f"language_model.model.layers.{layer}.router.proj": ROUTER for layer in range(2)},
    },
}


def configs(vocabulary):
    sizes = dict(vocab_size=vocabulary, vocab_size_per_layer_input=vocabulary)

    def wrapped(model_type, **text):
        return dict(
            ENDS,
            architectures=["Gemma4ForConditionalGeneration"],
            model_type=model_type,
            text_config=dict(TEXT, **sizes, **text),
            vocab_size=vocabulary,
            tie_word_embeddings=True,
        )

    return {
        "gemma4-12b-tiny": wrapped("gemma4_unified"),
        "gemma4-e4b-tiny": wrapped("gemma4", **E4B),
        "gemma4-e4b-tiny-4bit": wrapped(
            "gemma4", **dict(E4B, intermediate_size=64, hidden_size_per_layer_input=32)
        ),
        "gemma4-26b-tiny": wrapped("gemma4", **A4B),
        "gemma4-26b-tiny-4bit": wrapped(
            "gemma4", **dict(A4B, hidden_size=64, intermediate_size=64)
        ),
        # Text alone, with a head of its own and no cap.
        "gemma4-text-tiny": dict(
            TEXT,
            **sizes,
            **ENDS,
            architectures=["Gemma4ForCausalLM"],
            num_hidden_layers=2,
            layer_types=TYPES[1:],
            final_logit_softcapping=None,
            tie_word_embeddings=False,
        ),
    }


def as_on_hub(weights, text):
    """The tensors as Hugging Face has them: under other names, gate and value of the experts in one, with
    towers, and with keys and values of layers that do not use them."""
    layers = range(text["num_hidden_layers"])
    weights = {name.replace("language_model.", "", 1): array for name, array in weights.items()}
    for layer in layers if text["enable_moe_block"] else []:
        experts = f"model.layers.{layer}.experts"
        gate, up, down = [
            weights.pop(f"{experts}.switch_glu.{name}_proj.weight") for name in ["gate", "up", "down"]
        ]
        weights[f"{experts}.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        weights[f"{experts}.down_proj"] = down
    for layer in layers[len(layers) - text["num_kv_shared_layers"] :]:
        for name in ["k_proj", "v_proj", "k_norm"]:
            unused = f"model.layers.{layer}.self_attn.{name}.weight"
            weights[unused] = mx.full((32, 32), 3.0, mx.bfloat16)
    weights = {name.replace("model.", "model.language_model.", 1): a for name, a in weights.items()}
    for tower in ["vision_tower.encoder", "audio_tower.encoder", "embed_vision", "embed_audio"]:
        weights[f"model.{tower}.linear.weight"] = mx.full((8, 8), 3.0, mx.bfloat16)
        weights[f"model.{tower}.linear.input_max"] = mx.array(3.0, mx.bfloat16)
    return weights
