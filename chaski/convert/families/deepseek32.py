"""DeepSeek V3.2 (DeepSeek-AI 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families import deepseek2
from chaski.convert.latent import split_heads
from chaski.convert.metadata import Metadata

_INDEXER = {"attn_k": "wk", "attn_q_b": "wq_b", "k_norm": "k_norm", "proj": "weights_proj"}


def metadata(config: Config) -> Metadata:
    layers, dense = config.count("num_hidden_layers"), config.get("first_k_dense_replace", int, 0)
    config.expect("mlp_layer_types", ["dense"] * min(dense, layers) + ["sparse"] * (layers - dense))
    return deepseek2.metadata(config) | {
        "attention.indexer.head_count": config.get("index_n_heads", int),
        "attention.indexer.key_length": config.get("index_head_dim", int),
        "attention.indexer.top_k": config.get("index_topk", int),
    }


def special(config: Config) -> Specials:
    """Return the sources of latent attention and of indexers."""
    of_indexers = {
        f"indexer.{name}": Special(sources=(f"self_attn.indexer.{source}",))
        for name, source in _INDEXER.items()
    }
    return {**split_heads(config), **of_indexers}


FAMILY = derived_family("deepseek32", metadata, special)
CHECKPOINTS = ("DeepseekV32ForCausalLM",)
