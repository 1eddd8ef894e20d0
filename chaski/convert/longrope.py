"""LongRoPE (Ding et al. 2024): its factors become tensors of the file."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chaski.convert.config import Config
from chaski.convert.metadata import num_rotated, rope
from chaski.convert.tensors import Constant
from chaski.errors import ModelError

__all__ = ["LONGROPE", "is_longrope", "longrope_factors", "longrope_magnitude", "trained_length"]

LONGROPE = ("longrope", "su")
"""The current name of this type of rope, and the original one."""


def is_longrope(config: Config) -> bool:
    return rope(config).get("rope_type", str, "default") in LONGROPE


def trained_length(config: Config) -> int:
    """Return the context for which the short factors are."""
    length = config.get("max_position_embeddings", int)
    return rope(config).get("original_max_position_embeddings", int, length)


def longrope_magnitude(config: Config) -> float:
    """Return the factor of queries and keys."""
    settings, trained = rope(config), trained_length(config)
    factor = settings.get("factor", float, config.get("max_position_embeddings", int) / trained)
    usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return settings.get("attention_factor", float, usual)


def longrope_factors(config: Config) -> Iterator[Constant]:
    """Yield the tensors of both sets of factors, if the rope has them."""
    if is_longrope(config):
        yield from (_factors(config, kind) for kind in ("long", "short"))


def _factors(config: Config, kind: str) -> Constant:
    values = rope(config).list(f"{kind}_factor", float)
    if len(values) != num_rotated(config) // 2 or not all(type(value) in (int, float) for value in values):
        raise ModelError(f"{config.path}: '{kind}_factor' does not have a number for each rotated pair")
    return Constant(f"rope_factors_{kind}.weight", np.array(values, np.float32))
