"""Step 3.5 (StepFun 2026), whose checkpoints stack the matrices of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from chaski.convert.blocks import block_metadata, num_blocks
from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import (
    Metadata,
    common_metadata,
    head_size,
    llama3_rope_factors,
)
from chaski.convert.tensors import Constant, Planned
from chaski.errors import UnsupportedError
from chaski.ml.moe_ops import Gating

T = TypeVar("T")

_NEAR = "sliding_attention"


def metadata(config: Config) -> Metadata:
    layers = config.count("num_hidden_layers")
    count = layers + num_blocks(config)
    kinds = _padded(config.list("layer_types", str), count, "full_attention")
    shares = _padded(config.list("partial_rotary_factors", float), count, 0.5)
    if shares != [1.0 if kind == _NEAR else 0.5 for kind in kinds]:
        raise UnsupportedError(f"{config.path}: 'partial_rotary_factors' has values that cannot be converted")
    other = config.part("attention_other_setting")
    heads, groups = config.get("num_attention_heads", int), config.get("num_attention_groups", int)
    near_heads = other.get("num_attention_heads", int, heads)
    near_groups = other.get("num_attention_groups", int, groups)
    thetas = config.list("rope_theta", float)
    size = config.get("moe_intermediate_size", int)
    return (
        common_metadata(_flat(config), rope_tensors=("llama3",))
        | {
            "context_length": config.get("max_position_embeddings", int),
            "attention.head_count": [near_heads if kind == _NEAR else heads for kind in kinds],
            "attention.head_count_kv": [near_groups if kind == _NEAR else groups for kind in kinds],
            "attention.sliding_window": config.get("sliding_window", int),
            "attention.sliding_window_pattern": [kind == _NEAR for kind in kinds],
            "rope.freq_base_swa": thetas[kinds.index(_NEAR)] if _NEAR in kinds else thetas[-1],
            "expert_count": config.get("moe_num_experts", int),
            "expert_used_count": config.get("moe_top_k", int),
            "expert_feed_forward_length": size,
            "expert_shared_feed_forward_length": config.get("share_expert_dim", int),
            "expert_gating_func": Gating.SIGMOID + 1,
            "expert_weights_scale": config.get("moe_router_scaling_factor", float, 1.0),
            "expert_weights_norm": config.get("norm_expert_weight", bool, True),
            "leading_dense_block_count": _dense(config, layers),
            "moe_every_n_layers": 1,
        }
        | _limits(config, count)
        | block_metadata(config)
    )


def _flat(config: Config) -> Config:
    """Return the settings under their usual names, those of the layers that see all tokens."""
    theta = config.list("rope_theta", float)[0]
    names = {"rope_theta": theta, "num_key_value_heads": config.get("num_attention_groups", int)}
    return Config(config.path, names).over(config)


def _dense(config: Config, layers: int) -> int:
    """Return the number of leading layers without experts; all others must have experts."""
    listed = sorted(int(each) for each in config.get("moe_layers_enum", str, "").split(",") if each.strip())
    first = listed[0] if listed else 0
    if listed and [each for each in listed if each < layers] != list(range(first, layers)):
        raise UnsupportedError(f"{config.path}: layers without experts after others cannot be converted")
    return first


def _padded(values: list[T], count: int, default: T) -> list[T]:
    """Return the values of `count` layers and blocks; blocks that have none get the default."""
    return [*values, *[default] * count][:count]


def _limits(config: Config, count: int) -> Metadata:
    names = {"swiglu_clamp_exp": "swiglu_limits", "swiglu_clamp_shexp": "swiglu_limits_shared"}
    return {
        key: _padded([0.0 if each is None else float(each) for each in config.list(name)], count, 0.0)
        for key, name in names.items()
        if name in config
    }


def special(config: Config) -> Mapping[str, Special]:
    norms = (
        "output_norm",
        "attn_norm",
        "attn_q_norm",
        "attn_k_norm",
        "ffn_norm",
        "nextn.enorm",
        "nextn.hnorm",
    )
    sources = {
        "nextn.shared_head_head": "transformer.shared_head.output",
        "attn_gate": "self_attn.g_proj",
        "exp_probs_b": "moe.router_bias",
        "ffn_gate_inp": "moe.gate",
        **{f"ffn_{part}_exps.weight": f"moe.{part}_proj" for part in ("gate", "up", "down")},
        **{f"ffn_{part}_shexp": f"share_expert.{part}_proj" for part in ("gate", "up", "down")},
    }
    return {
        **{name: Special(shift=1.0) for name in norms},
        **{name: Special(sources=(source,)) for name, source in sources.items()},
        "nextn.shared_head_norm": Special(sources=("transformer.shared_head.norm",), shift=1.0),
    }


_DERIVED = derived_family("step35", metadata, special)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    """Yield all tensors. The factors of the rope are those of half a head; others follow as 1."""
    flat = _flat(config)
    size = head_size(flat)
    factors = llama3_rope_factors(Config(config.path, {"head_dim": size // 2}).over(flat))
    if factors is not None:
        yield Constant("rope_freqs.weight", np.pad(factors, (0, size // 4), constant_values=1))
    without = Config(config.path, {"rope_scaling": {"rope_type": "default"}}).over(config)
    yield from _DERIVED.tensors(without, names)


FAMILY = replace(_DERIVED, tensors=tensors)
CHECKPOINTS = ("Step3p5ForCausalLM",)
