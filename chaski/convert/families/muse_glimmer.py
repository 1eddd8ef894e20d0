"""Muse Glimmer (Meta 2026), text."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family, rotated_heads
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.convert.tensors import Constant, Planned

_UNUSED = (r"vision_(tower|adapter|projection)\..*",)
_PERIOD = 4


def metadata(config: Config) -> Metadata:
    config.expect("hidden_activation", "silu")
    config.expect("post_norm_eps", 1e-8)
    rope(config).expect("rope_type", "default")
    layers = config.count("num_hidden_layers")
    kinds = config.list("layer_types", str) or [
        "sliding_attention" if left % _PERIOD else "full_attention" for left in reversed(range(layers))
    ]
    is_near = [kind == "sliding_attention" for kind in kinds]
    bases = config.list("layer_rope_theta", float)
    if bases:
        config.expect("layer_rope_theta", [max(bases) if near else 0 for near in is_near])
    return common_metadata(config) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.sliding_window_pattern": is_near,
        "final_logit_softcapping": config.get("final_logit_softcapping", float, 20.0),
        "logit_scale": config.get("output_multiplier", float),
    }


def special(config: Config) -> Specials:
    return {
        **rotated_heads(config),
        "attn_gate": Special(sources=("self_attn.gate_proj",)),
        "attn_norm": Special(shift=1.0),
        "post_attention_norm": Special(shift=1.0),
        "ffn_norm": Special(sources=("pre_feedforward_layernorm",), shift=1.0),
        "post_ffw_norm": Special(shift=1.0),
    }


_DERIVED = derived_family("muse-glimmer", metadata, special)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    """Yield the tensors, with a number as the norms of queries and of keys, which checkpoints lack."""
    size, factor = config.get("head_dim", int), config.get("qk_scale_factor", float)
    for planned in _DERIVED.tensors(config, names):
        if planned.name.endswith((".attn_q_norm.weight", ".attn_k_norm.weight")):
            value = factor if ".attn_q_norm." in planned.name else 1.0
            yield Constant(planned.name, np.full(size, value, np.float32))
        else:
            yield planned


FAMILY = Family("muse-glimmer", metadata, tensors, _UNUSED)
CHECKPOINTS = ("MuseGlimmerForConditionalGeneration",)
