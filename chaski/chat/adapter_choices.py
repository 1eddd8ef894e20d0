"""The adapters that a request asks for, by name, each with a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from chaski.errors import OptionError

__all__ = ["MAX_ADAPTERS", "AdapterChoice", "AdapterOption", "adapter_choices"]

MAX_ADAPTERS = 8
"""The adapters that one request may mix."""


class AdapterChoice(Struct, frozen=True):
    """A loaded adapter, and a factor for its change, in addition to the factor in its file."""

    name: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"option adapter names {self.name!r:.80}; the name of an adapter is a text")
        is_number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if not is_number or not math.isfinite(self.scale):
            raise OptionError(
                f"the scale of adapter {self.name!r:.80} is {self.scale!r:.80}; it must be a number"
            )


AdapterOption: TypeAlias = str | AdapterChoice | Sequence[str | AdapterChoice | tuple[str, float]]


def adapter_choices(value: Any) -> tuple[AdapterChoice, ...]:
    """Return the adapters of an option: one by its name, or a list of names and of pairs (name, scale).

    None means no adapters. Raises OptionError.
    """
    if value is None:
        return ()
    items = [value] if isinstance(value, str | AdapterChoice) else value
    if not isinstance(items, list | tuple):
        raise OptionError(f"option adapter is {value!r:.80}; it must be a name, or a list of (name, scale)")
    found = tuple(map(_choice, items))
    names = [choice.name for choice in found]
    if len(set(names)) < len(names):
        raise OptionError(
            f"option adapter names {max(names, key=names.count)!r:.80} twice; give it one scale"
        )
    if len(found) > MAX_ADAPTERS:
        raise OptionError(f"option adapter has {len(found)} adapters; at most {MAX_ADAPTERS} are mixed")
    return found


def _choice(item: Any) -> AdapterChoice:
    if isinstance(item, AdapterChoice):
        return item
    if isinstance(item, str):
        return AdapterChoice(item)
    if isinstance(item, list | tuple) and len(item) == 2:
        return AdapterChoice(*item)
    raise OptionError(f"option adapter has {item!r:.80}; it must be a name, or (name, scale)")
