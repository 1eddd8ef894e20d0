"""Frequencies of rotary position embeddings."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml.graph import Weight
from chaski.ml.nn.module import Module

__all__ = ["RopeFactors", "Yarn", "rope_frequencies", "yarn_frequencies"]

F64 = npt.NDArray[np.float64]


class RopeFactors(Module):
    """Optional divisors of the frequencies, one per pair: `rope_freqs.weight` of Llama 3.1 and later."""

    def __init__(self, dims: int) -> None:
        self.weight = Weight((dims // 2,), optional=True, host=True)


def rope_frequencies(
    dims: int, base: float, scale: float = 1.0, factors: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Return the radians per position of each pair: base^(-2j/dims) · scale / factors[j], shape (dims/2,).

    `scale` below 1 is linear position interpolation (Chen et al. 2023): 1/factor of the file's rope scaling.
    """
    frequencies = scale * _plain_frequencies(dims, base)
    if factors is not None:
        frequencies = frequencies / factors
    return frequencies.astype(np.float32)


class Yarn(Struct, frozen=True):
    """YaRN (Peng et al. 2023) for a context `factor` times as long as the `trained` one.

    Pairs that turn more than `beta_fast` times within the trained context keep their frequency. The
    frequencies of pairs that turn less than `beta_slow` times are divided by the factor, with a ramp between.
    `truncate`: whether the ends of the ramp are rounded outwards to whole pairs.
    """

    factor: float
    trained: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def magnitude(self, multiplier: float = 1.0) -> float:
        """Return 0.1 · multiplier · ln(factor) + 1, by which the paper multiplies queries and keys."""
        return 0.1 * multiplier * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


def yarn_frequencies(
    dims: int, base: float, yarn: Yarn, factors: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Return the radians per position of each rotated pair, divided by its factor: shape (dims/2,)."""
    plain = _plain_frequencies(dims, base)
    low, high = (
        dims * math.log(yarn.trained / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (yarn.beta_fast, yarn.beta_slow)
    )
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    frequencies: F64 = plain * (1 - ramp) + plain / yarn.factor * ramp
    if factors is not None:
        frequencies = frequencies / factors
    return frequencies.astype(np.float32)


def _plain_frequencies(dims: int, base: float) -> F64:
    frequencies: F64 = np.power(base, -np.arange(0, dims, 2, dtype=np.float64) / dims)
    return frequencies
