"""Chameleon (Meta 2024), without its encoder of images."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family, rotated_heads
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("mlp_bias", False)
    return common_metadata(config) | {"swin_norm": config.get("swin_norm", bool, False)}


def special(config: Config) -> Specials:
    norms = ("attn_q_norm", "attn_k_norm")
    return {**rotated_heads(config), **dict.fromkeys(norms, Special(arrange=_adjacent))}


def _adjacent(values: NDArray[Any]) -> NDArray[Any]:
    """Return the elements of each head (heads, size) in the order of the rows of queries and keys."""
    return values.reshape(len(values), 2, -1).swapaxes(1, 2)


FAMILY = derived_family("chameleon", metadata, special, unused=(r"vqmodel\..*",))
CHECKPOINTS = ("ChameleonForCausalLM", "ChameleonForConditionalGeneration")
