"""Modules: a tree of weights whose attribute paths are the tensor names of the file.

`self.attn_q = Linear(…)` inside `self.blk[3]` is bound to `blk.3.attn_q.weight`. A module whose class sets
`inline` adds no component to the name, because GGUF has none there (`blk.3.attn.attn_q` does not exist). A
file may store the rows of several parts in one tensor if the module allows it: see `joined`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from chaski.ml.graph import Weight

__all__ = ["Joined", "Module"]


class Joined(Struct, frozen=True):
    """One tensor of a file instead of several: `whole` contains the rows of `parts`, one after the other.

    All are names of modules: `blk.3.attn_qkv.weight` replaces `blk.3.attn_q.weight` and the other parts.
    """

    whole: str
    parts: tuple[str, ...]


class Module:
    """A part of a model: weights, other modules, and lists of modules, as plain attributes."""

    inline: ClassVar[bool] = False
    joined: ClassVar[Joined | None] = None
    """Joined tensors that files may contain instead of some attributes."""

    unused: tuple[str, ...] = ()
    """Prefixes of names of tensors that files may contain here but that the module does not use."""

    def weights(self, prefix: str = "") -> Iterator[tuple[str, Weight]]:
        """Yield every weight of the tree with the name that it must have in the file."""
        for path, value in self._parts(prefix):
            if isinstance(value, Weight):
                yield path, value
            else:
                yield from value.weights(path)

    def joined_weights(self, prefix: str = "") -> Iterator[tuple[str, list[tuple[str, Weight]]]]:
        """Yield every joined tensor that the file may contain, with its weights in order."""
        if self.joined is not None:
            start = f"{prefix}." if prefix else ""
            for kind in ("weight", "bias"):
                parts = [(f"{start}{p}.{kind}", getattr(getattr(self, p), kind)) for p in self.joined.parts]
                yield f"{start}{self.joined.whole}.{kind}", parts
        for path, value in self._parts(prefix):
            if isinstance(value, Module):
                yield from value.joined_weights(path)

    def unused_names(self, prefix: str = "") -> Iterator[str]:
        """Yield prefixes of the names of all tensors that the file may contain and the tree does not use."""
        start = f"{prefix}." if prefix else ""
        yield from (f"{start}{name}" for name in self.unused)
        for path, value in self._parts(prefix):
            if isinstance(value, Module):
                yield from value.unused_names(path)

    def _parts(self, prefix: str) -> Iterator[tuple[str, Weight | Module]]:
        for attribute, value in vars(self).items():
            path = f"{prefix}.{attribute}" if prefix else attribute
            if isinstance(value, Weight):
                yield path, value
            elif isinstance(value, Module):
                yield prefix if value.inline else path, value
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    yield f"{path}.{index}", item
