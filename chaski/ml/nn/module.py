"""Modules: a tree of weights whose attribute paths are the tensor names of the file.

`self.attn_q = Linear(…)` inside `self.blk[3]` is bound to `blk.3.attn_q.weight`. A module whose class sets
`inline` adds no component of its own, because GGUF has none there (`blk.3.attn.attn_q` does not exist).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from chaski.ml.graph import Weight

__all__ = ["Module"]


class Module:
    """A part of a model: weights, other modules, and lists of modules, as plain attributes."""

    inline: ClassVar[bool] = False

    def weights(self, prefix: str = "") -> Iterator[tuple[str, Weight]]:
        """Every weight of the tree with the name that it must have in the file."""
        for attribute, value in vars(self).items():
            path = f"{prefix}.{attribute}" if prefix else attribute
            if isinstance(value, Weight):
                yield path, value
            elif isinstance(value, Module):
                yield from value.weights(prefix if value.inline else path)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    yield from item.weights(f"{path}.{index}")
