"""The adapters of one sequence, in the order in which they are applied."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

__all__ = ["AppliedAdapters", "Use"]


class Use(NamedTuple):
    """An adapter in a slot of the backend's table, and its scale.

    `holder` keeps the adapter in its slot for as long as a reference to the use exists.
    """

    slot: int
    scale: float
    holder: object

    @property
    def scale_bits(self) -> int:
        """The bits of the scale as a float32."""
        return int(np.float32(self.scale).view(np.int32))


class AppliedAdapters(Struct, frozen=True, eq=False, weakref=True):
    """The adapters of a sequence; `key` is equal for those that change the same tokens in the same way."""

    key: str
    uses: tuple[Use, ...]
