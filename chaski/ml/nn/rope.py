"""Rotary position embedding: which frequencies a model turns its heads with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import Weight
from chaski.ml.nn.module import Module

__all__ = ["RopeFactors", "rope_frequencies"]


class RopeFactors(Module):
    """Optional divisors of the frequencies, one a pair: `rope_freqs.weight` of Llama 3.1 and later."""

    def __init__(self, dims: int) -> None:
        self.weight = Weight((dims // 2,), optional=True, host=True)


def rope_frequencies(
    dims: int, base: float, scale: float = 1.0, factors: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Radians per position of each rotated pair: base^(-2j/dims) · scale / factors[j], shape (dims/2,).

    `scale` below 1 is linear position interpolation (Chen et al. 2023): 1/factor of the file's rope scaling.
    """
    frequencies = scale / np.power(base, np.arange(0, dims, 2, dtype=np.float64) / dims)
    if factors is not None:
        frequencies = frequencies / factors
    return frequencies.astype(np.float32)
