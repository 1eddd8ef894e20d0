"""The adapters of one sequence in the order of their application."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

__all__ = ["AppliedAdapters", "Use"]


class Use(NamedTuple):
    """An adapter in a slot of the backend's table, and its scale.

    `holder` keeps the adapter in its slot as long as the use is referenced.
    """

    slot: int
    scale: float
    holder: object

    @property
    def scale_bits(self) -> int:
        """The bits of the scale as a float32."""
        return int(np.float32(self.scale).view(np.int32))


class AppliedAdapters(Struct, frozen=True, eq=False, weakref=True):
    """The adapters of a sequence. Sequences whose adapters have equal effects have equal `key`s.

    digests  the SHA-256 of the matrices of each
    """

    key: str
    uses: tuple[Use, ...]
    digests: tuple[str, ...] = ()
