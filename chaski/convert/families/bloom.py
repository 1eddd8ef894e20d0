"""BLOOM (BigScience 2022), whose rows of queries, keys and values alternate by heads."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.family import heads_apart
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    config.expect("apply_residual_connection_post_layernorm", False)
    hidden, heads = config.get("hidden_size", int), config.get("n_head", int)
    return {
        "block_count": config.count("n_layer"),
        "context_length": config.get("seq_length", int, hidden),
        "embedding_length": hidden,
        "feed_forward_length": 4 * hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
    }


def special(config: Config) -> Mapping[str, Special]:
    return {"attn_qkv": Special(arrange=heads_apart(config.get("n_head", int)))}


FAMILY = derived_family("bloom", metadata, special)
CHECKPOINTS = ("BloomForCausalLM", "BloomModel")
