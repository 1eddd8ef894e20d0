"""Granite 4.1 with windows (Granite Team 2026)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family, rotated_heads
from chaski.convert.experts import expert_metadata
from chaski.convert.families import granite
from chaski.convert.metadata import Metadata, rope
from chaski.errors import UnsupportedError

_MOE = "block_sparse_moe"
_SOURCES = {
    "attn_sinks": ("self_attn.sinks",),
    "ffn_gate_inp": (f"{_MOE}.router.layer", f"{_MOE}.router"),
    "ffn_gate_up_exps.weight": (f"{_MOE}.input_linear", f"{_MOE}.experts.gate_up_proj"),
    "ffn_down_exps.weight": (f"{_MOE}.output_linear", f"{_MOE}.experts.down_proj"),
    "ffn_up_shexp": ("shared_mlp.input_linear",),
    "ffn_down_shexp": ("shared_mlp.output_linear",),
}


def metadata(config: Config) -> Metadata:
    layers = config.count("num_hidden_layers")
    usual = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(layers)]
    kinds = config.list("layer_types", str) or usual
    entries = granite.metadata(config) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int, 128),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }
    bases = config.list("layer_rope_theta", float)
    if not set(bases) <= {0.0, rope(config).get("rope_theta", float, 10000.0)}:
        raise UnsupportedError(
            f"{config.path}: 'layer_rope_theta' has several bases, which cannot be converted"
        )
    shared = config.get("shared_intermediate_size", int, 0)
    if config.get("num_local_experts", int, 0):
        entries |= expert_metadata(config)
        entries |= {"expert_shared_feed_forward_length": shared} if shared else {}
    return entries | ({"attention.rope_pattern": [base > 0 for base in bases]} if 0.0 in bases else {})


def special(config: Config) -> Mapping[str, Special]:
    return {
        **rotated_heads(config),
        **{name: Special(sources=sources) for name, sources in _SOURCES.items()},
    }


FAMILY = derived_family("granite_swa", metadata, special)
CHECKPOINTS = ("GraniteMoeSWAForCausalLM", "GraniteSWAForCausalLM")
