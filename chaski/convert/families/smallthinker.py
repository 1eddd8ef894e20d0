"""SmallThinker (Song et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import Metadata, common_metadata
from chaski.ml.moe_ops import Gating

_PERIOD = 4
_SOURCES = {
    "ffn_gate_inp": "block_sparse_moe.primary_router",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.gate",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.down",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.up",
}


def metadata(config: Config) -> Metadata:
    layers, hidden = config.count("num_hidden_layers"), config.get("moe_ffn_hidden_size", int)
    config.expect("moe_layer_layout", [1] * layers)
    has_windows = any(config.list("sliding_window_layout", int))
    layout = [int(has_windows and layer % _PERIOD > 0) for layer in range(layers)]
    config.expect("sliding_window_layout", layout)
    config.expect("rope_layout", layout if has_windows else [1] * layers)
    is_softmax = config.get("moe_primary_router_apply_softmax", bool, False)
    names = {"intermediate_size": hidden}
    return (
        common_metadata(Config(config.path, names).over(config))
        | {
            "context_length": config.get("max_position_embeddings", int),
            "expert_count": config.get("moe_num_primary_experts", int),
            "expert_used_count": config.get("moe_num_active_primary_experts", int),
            "expert_feed_forward_length": hidden,
            "expert_gating_func": (Gating.SOFTMAX if is_softmax else Gating.SIGMOID) + 1,
        }
        | ({"attention.sliding_window": config.get("sliding_window_size", int)} if has_windows else {})
    )


def special(config: Config) -> Mapping[str, Special]:
    return {name: Special(sources=(source,)) for name, source in _SOURCES.items()}


FAMILY = derived_family("smallthinker", metadata, special)
CHECKPOINTS = ("SmallThinkerForCausalLM",)
