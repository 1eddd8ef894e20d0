"""The result of a sequence that makes no text."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaski.chat.sendable import Sendable

__all__ = ["Outputs"]


class Outputs(Sendable, frozen=True, eq=False):
    """Outputs of the model for n tokens: float32 rows (n, size)."""

    rows: np.ndarray[Any, np.dtype[np.float32]]
    num_tokens: int = 0
