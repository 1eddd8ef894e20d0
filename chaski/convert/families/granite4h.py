"""Granite 4 H, with state-space layers, dense and with experts (Granite Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family, rotated_heads
from chaski.convert.families import granite
from chaski.convert.metadata import Metadata
from chaski.convert.state_space import mamba2_specials

_ANY_LENGTH = 1 << 20  # without a rope there is no longest context
_ATTENDING = ("attention", "full_attention")


def metadata(config: Config) -> Metadata:
    config.expect("mamba_proj_bias", False)
    kinds = config.list("layer_types", str) or config.list("layers_block_type", str)
    heads = config.get("num_key_value_heads", int)
    rotates = config.get("position_embedding_type", str, "") == "rope"
    entries = granite.metadata(config) | {
        "attention.head_count_kv": [heads if kind in _ATTENDING else 0 for kind in kinds],
        "rope.scaling.finetuned": rotates,
        "ssm.conv_kernel": config.get("mamba_d_conv", int, 4),
        "ssm.inner_size": config.get("mamba_expand", int, 2) * config.get("hidden_size", int),
        "ssm.state_size": config.get("mamba_d_state", int, 256),
        "ssm.time_step_rank": config.get("mamba_n_heads", int, 128),
        "ssm.group_count": config.get("mamba_n_groups", int, 1),
    }
    if not rotates:
        entries["context_length"] = _ANY_LENGTH
    entries["expert_count"] = config.get("num_local_experts", int, 0)
    entries["expert_used_count"] = config.get("num_experts_per_tok", int, 0)
    shared = config.get("shared_intermediate_size", int, 0)
    if shared:
        entries["expert_shared_feed_forward_length"] = shared
    if not entries["expert_count"]:
        entries["feed_forward_length"] = shared
    return entries


def special(config: Config) -> Mapping[str, Special]:
    shared = "shexp" if config.get("num_local_experts", int, 0) else ""
    return {
        **mamba2_specials(),
        **rotated_heads(config),
        "ffn_gate_inp": Special(sources=("block_sparse_moe.router.layer",)),
        **_network("block_sparse_moe", "exps"),
        **_network("shared_mlp", shared),
    }


def _network(source: str, kind: str) -> Mapping[str, Special]:
    """Return gate, up and down of a network whose gate and up are one tensor."""
    end = f"_{kind}" if kind else ""
    halves = {
        f"ffn_{name}{end}": Special(
            sources=(f"{source}.input_linear",), arrange=partial(_half, part), source_shape=_both
        )
        for part, name in enumerate(("gate", "up"))
    }
    return {**halves, f"ffn_down{end}": Special(sources=(f"{source}.output_linear",))}


def _half(part: int, values: NDArray[Any]) -> NDArray[Any]:
    size = values.shape[-2] // 2
    return values[..., part * size : (part + 1) * size, :]


def _both(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], 2 * shape[-2], shape[-1])


FAMILY = derived_family("granitehybrid", metadata, special)
