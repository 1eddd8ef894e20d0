"""The report on the content of a tier."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["TierUse"]


class TierUse(Struct, frozen=True):
    """The blocks of a model in a `tier`: memory, or disk.

    It holds up to `max_bytes`, on disk of all models together.
    """

    tier: str
    num_blocks: int
    num_tokens: int
    num_bytes: int
    max_bytes: int
