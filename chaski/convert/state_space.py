"""Common parts of checkpoints with Mamba layers: sizes, and functions of their tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chaski.convert.derived import Special
from chaski.convert.tensors import F32

__all__ = ["DECAYS", "mamba2_specials"]


def _decay(log: F32) -> F32:
    y: F32 = -np.exp(log.astype(np.float64)).astype(np.float32)
    return y


DECAYS = Special(function=_decay)
"""Files store the decays of states, and checkpoints their logarithms."""


def mamba2_specials() -> Mapping[str, Special]:
    """Return the tensors of Mamba 2 whose shapes differ: files have a column, or a row for each group."""
    return {
        "ssm_a": Special(function=_decay, source_shape=lambda shape: shape[:1]),
        "ssm_d": Special(source_shape=lambda shape: shape[:1]),
        "ssm_norm.weight": Special(source_shape=lambda shape: (shape[0] * shape[1],)),
    }
