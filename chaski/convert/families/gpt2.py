"""GPT-2 (Radford et al. 2019), whose matrices are stored transposed."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import TensorShape, transposed


def metadata(config: Config) -> Metadata:
    config.expect("activation_function", "gelu_new", "gelu_pytorch_tanh")
    config.expect("scale_attn_by_inverse_layer_idx", False)
    hidden = config.get("n_embd", int)
    return {
        "block_count": config.count("n_layer"),
        "context_length": config.get("n_positions", int),
        "embedding_length": hidden,
        "feed_forward_length": config.get("n_inner", int, 4 * hidden),
        "attention.head_count": config.get("n_head", int),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
    }


def special(config: Config) -> Mapping[str, Special]:
    turned = Special(arrange=transposed, source_shape=_turned)
    return {f"{name}.weight": turned for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")}


def _turned(shape: TensorShape) -> TensorShape:
    return shape[::-1]


FAMILY = derived_family("gpt2", metadata, special)
CHECKPOINTS = ("GPT2LMHeadModel",)
