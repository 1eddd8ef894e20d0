"""Adapters by llama.cpp's numbers."""

from __future__ import annotations

from chaski.errors import OptionError
from chaski.server.fields.reader import Fields

__all__ = ["read_lora", "read_scales"]


def read_lora(fields: Fields) -> list[tuple[int, float]] | None:
    """Return the numbers and scales of a request's adapters, without those of scale 0; None if not given.

    Raises OptionError.
    """
    if not fields.has("lora"):
        return None
    return [(number, scale) for number, scale in read_scales(fields, "lora") if scale]


def read_scales(fields: Fields, name: str) -> list[tuple[int, float]]:
    """Read a list of objects with `id` and `scale`. Raises OptionError."""
    found = []
    for each in fields.objects(name):
        number, scale = each.integer("id", None), each.number("scale", None)
        if number is None or scale is None:
            raise OptionError(f"{each.where} must contain id and scale")
        found.append((number, scale))
    if len(dict(found)) < len(found):
        raise OptionError(f"{name} lists an adapter twice")
    return found
