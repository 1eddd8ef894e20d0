"""Falcon (Almazrouei et al. 2023), whose rows of queries, keys and values alternate by groups of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Arrange

_CONTEXT = 2048  # not in the configuration


def metadata(config: Config) -> Metadata:
    config.expect("alibi", False)
    config.expect("bias", False)
    config.expect("parallel_attn", True)
    config.expect("activation", "gelu")
    settings = rope(config)
    settings.expect("rope_type", "default")
    hidden, heads = config.get("hidden_size", int), config.get("num_attention_heads", int)
    return {
        "block_count": config.count("num_hidden_layers"),
        "context_length": _CONTEXT,
        "embedding_length": hidden,
        "feed_forward_length": config.get("ffn_hidden_size", int, 4 * hidden),
        "attention.head_count": heads,
        "attention.head_count_kv": _kv_heads(config),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
        "rope.freq_base": settings.get("rope_theta", float, 10000.0),
    }


def _kv_heads(config: Config) -> int:
    heads = config.get("num_attention_heads", int)
    if config.get("new_decoder_architecture", bool, False):
        return config.get("num_kv_heads", int, heads)
    return 1 if config.get("multi_query", bool, True) else heads


def special(config: Config) -> Mapping[str, Special]:
    arrange = _groups_apart(config.get("num_attention_heads", int), _kv_heads(config))
    return {
        "attn_qkv": Special(arrange=arrange),
        "attn_norm": Special(sources=("ln_mlp",)),
        "attn_norm_2": Special(sources=("ln_attn",)),
    }


def _groups_apart(num_heads: int, num_kv_heads: int) -> Arrange:
    """Return the arrangement of groups: queries of a group of heads, then their key and their value."""

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        groups = values.reshape(num_kv_heads, num_heads // num_kv_heads + 2, -1, *values.shape[1:])
        parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

    return arrange


FAMILY = derived_family("falcon", metadata, special)
CHECKPOINTS = ("FalconForCausalLM", "RWForCausalLM")
