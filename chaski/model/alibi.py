"""ALiBi (Press et al. 2021): scores fall with the distance of a key, by a slope for each head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.ml import ops
from chaski.ml.graph import Tensor

__all__ = ["alibi", "alibi_slopes"]


def alibi(slopes: npt.NDArray[np.float32], context: int, positions: Tensor) -> ops.DistanceBias:
    """Return the term of the scores, for sequences of up to `context` tokens at these positions."""
    distances = np.abs(np.arange(1 - context, context, dtype=np.float32))
    return ops.DistanceBias(-slopes[:, None] * distances, positions)


def alibi_slopes(num_heads: int, largest: float) -> npt.NDArray[np.float32]:
    """Return each head's slope: powers of one base, and values in between if `num_heads` is no power of 2."""
    plain = 1 << (num_heads.bit_length() - 1)
    powers = [*range(1, plain + 1), *np.arange(0.5, num_heads - plain, 1.0).tolist()]
    return np.power(2.0, -largest / plain * np.array(powers)).astype(np.float32)
