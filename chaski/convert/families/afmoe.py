"""AFMoE (Arcee AI 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata

_PERIOD = 4
_SPECIAL = {
    "attn_gate": Special(sources=("self_attn.gate_proj",)),
    "ffn_norm": Special(sources=("pre_mlp_layernorm",)),
}


def metadata(config: Config) -> Metadata:
    layers = range(1, config.count("num_hidden_layers") + 1)
    kinds = ["sliding_attention" if layer % _PERIOD else "full_attention" for layer in layers]
    config.expect("layer_types", kinds)
    config.require("mup_enabled", True)
    return (
        llama.metadata(config, rope_tensors=())
        | full_expert_metadata(config)
        | {
            "context_length": config.get("max_position_embeddings", int),
            "attention.sliding_window": config.get("sliding_window", int),
        }
    )


def special(config: Config) -> Mapping[str, Special]:
    return _SPECIAL


FAMILY = derived_family("afmoe", metadata, special)
CHECKPOINTS = ("AfmoeForCausalLM",)
