"""The result of a sequence that makes no text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Outputs"]


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Outputs of the model for so many tokens: float32 rows (n, size)."""

    rows: npt.NDArray[np.float32]
    num_tokens: int = 0
