"""The result of a sequence that makes no text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

__all__ = ["Outputs"]


class Outputs(Struct, frozen=True, eq=False):
    """Outputs of the model for so many tokens: float32 rows (n, size)."""

    rows: npt.NDArray[np.float32]
    num_tokens: int = 0
