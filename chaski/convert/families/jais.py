"""Jais (Sengupta et al. 2023), whose matrices are stored transposed, and whose factors are multiplied in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import F32, TensorShape, transposed

_LARGEST_BIAS = 8.0


def metadata(config: Config) -> Metadata:
    config.expect("activation_function", "swiglu")
    config.expect("position_embedding_type", "alibi")
    config.expect("scale_attn_weights", True)
    config.expect("scale_attn_by_inverse_layer_idx", False)
    config.expect("mup_scale_qk_dot_by_d", True)
    config.expect("scale_qk_dot_by_d", True)
    return {
        "block_count": config.count("n_layer"),
        "context_length": config.get("n_positions", int),
        "embedding_length": config.get("n_embd", int),
        "feed_forward_length": config.get("n_inner", int),
        "attention.head_count": config.get("n_head", int),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
        "attention.max_alibi_bias": _LARGEST_BIAS,
    }


def special(config: Config) -> Specials:
    turned = Special(arrange=transposed, source_shape=_turned)
    table = {f"{name}.weight": turned for name in ("attn_qkv", "attn_output", "ffn_down")}
    gate = Special(sources=("mlp.c_fc2",), arrange=transposed, source_shape=_turned)
    up = Special(sources=("mlp.c_fc",), arrange=transposed, source_shape=_turned)
    return table | {
        "ffn_gate.weight": gate,
        "ffn_gate.bias": Special(sources=("mlp.c_fc2",)),
        "ffn_up.weight": up,
        "token_embd": Special(function=_times(_embedding_factor(config))),
        "output": Special(sources=("lm_head", "wte"), function=_times(_output_factor(config))),
    }


def _embedding_factor(config: Config) -> float:
    if "mup_embeddings_scale" in config:
        return config.get("mup_embeddings_scale", float)
    return config.get("embeddings_scale", float)


def _output_factor(config: Config) -> float:
    if "mup_output_alpha" in config:
        return config.get("mup_output_alpha", float) * config.get("mup_width_scale", float)
    return config.get("width_scale", float)


def _times(factor: float) -> Callable[[F32], F32]:
    return lambda values: values * np.float32(factor)


def _turned(shape: TensorShape) -> TensorShape:
    return shape[::-1]


FAMILY = derived_family(
    "jais", metadata, special, unused=(r"h\.\d+\.attn\.(masked_)?bias", r"relative_pe\.slopes")
)
CHECKPOINTS = ("JAISLMHeadModel",)
