"""MiniMax M3 (MiniMax 2026), text."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.family import VISION_TENSORS
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope
from chaski.errors import UnsupportedError
from chaski.ml.moe_ops import Gating

_INDEXER = {
    "attention.indexer.head_count": ("index_n_heads", "sparse_num_index_heads"),
    "attention.indexer.key_length": ("index_head_dim", "sparse_index_dim"),
    "attention.indexer.top_k": ("index_topk_blocks", "sparse_topk_blocks"),
    "attention.indexer.block_size": ("index_block_size", "sparse_block_size"),
    "attention.indexer.local_blocks": ("index_local_blocks", "sparse_local_block"),
}
"""GGUF's keys, the names of transformers, and those of published configurations."""

_NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "output_norm")


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "swigluoai", "silu")
    config.expect("swiglu_alpha", 1.702)
    config.expect("swiglu_limit", 7.0)
    config.expect("scoring_func", "sigmoid")
    config.expect("qk_norm_type", "per_head")
    size, shared = config.get("intermediate_size", int), config.get("n_shared_experts", int, 1)
    config.expect("shared_intermediate_size", size * shared)
    share = rope(config).get("partial_rotary_factor", float, 1.0)
    sparse = config.part("sparse_attention_config")
    return {
        **common_metadata(config),
        **expert_metadata(config, "expert_weights_scale"),
        "feed_forward_length": config.get("dense_intermediate_size", int),
        "expert_feed_forward_length": size,
        "expert_gating_func": Gating.SIGMOID + 1,
        "expert_shared_count": shared,
        "expert_weights_norm": True,
        "leading_dense_block_count": _dense(config),
        "rope.dimension_count": config.get("rotary_dim", int, int(head_size(config) * share)),
        **{
            key: sparse.get(published, int, None) or config.get(name, int)
            for key, (name, published) in _INDEXER.items()
        },
    }


def _dense(config: Config) -> int:
    """Return the number of leading layers without experts and sparse attention.

    Raises UnsupportedError for another order, or for layers that have one without the other.
    """
    layers = config.count("num_hidden_layers")
    flags = [bool(flag) for flag in config.list("moe_layer_freq", int)]
    flags = flags or [kind == "sparse" for kind in config.list("mlp_layer_types", str)]
    sparse = [
        bool(flag) for flag in config.part("sparse_attention_config").list("sparse_attention_freq", int)
    ]
    sparse = sparse or [kind == "minimax_m3_sparse" for kind in config.list("layer_types", str)]
    dense = flags.count(False)
    if flags != sparse or flags != [False] * dense + [True] * (layers - dense):
        raise UnsupportedError(
            f"{config.path}: layers without experts or sparse attention must be the first, and have neither"
        )
    return dense


def special(config: Config) -> Specials:
    indexer = {
        f"indexer.{name}": Special(
            sources=(f"self_attn.index_{name}", f"self_attn.indexer.{name}"),
            shift=1.0 if name.endswith("norm") else 0.0,
        )
        for name in ("q_proj", "k_proj", "q_norm", "k_norm")
    }
    shared = {
        f"ffn_{name}_shexp": Special(sources=(f"block_sparse_moe.shared_experts.{name}_proj",))
        for name in ("gate", "up", "down")
    }
    return {**{name: Special(shift=1.0) for name in _NORMS}, **indexer, **shared}


_UNUSED = (*VISION_TENSORS, r"patch_merge_mlp\..*", r"mtp\..*")
FAMILY = derived_family("minimax-m3", metadata, special, unused=_UNUSED)
CHECKPOINTS = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")
