"""Modules: a tree of weights whose attribute paths are the tensor names of the file.

`self.attn_q = Linear(…)` inside `self.blk[3]` is bound to `blk.3.attn_q.weight`. A module whose class sets
`inline` adds no component of its own, because GGUF has none there (`blk.3.attn.attn_q` does not exist).

Where programs that write files call a tensor differently, `aliases` has the other name of an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from chaski.ml.graph import Weight

__all__ = ["Module"]


class Module:
    """A part of a model: weights, other modules, and lists of modules, as plain attributes."""

    inline: ClassVar[bool] = False
    aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def weights(self, prefix: str = "", by_alias: bool = False) -> Iterator[tuple[str, Weight]]:
        """Every weight of the tree with the name that it must have in the file, or with the other one."""
        for attribute, value in vars(self).items():
            component = self.aliases.get(attribute, attribute) if by_alias else attribute
            path = f"{prefix}.{component}" if prefix else component
            if isinstance(value, Weight):
                yield path, value
            elif isinstance(value, Module):
                yield from value.weights(prefix if value.inline else path, by_alias)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    yield from item.weights(f"{path}.{index}", by_alias)
