"""The summary of a GGUF file for the manifest of its model. Reads the header only."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Literal

from msgspec import Struct

from chaski.formats.file_types import file_type

__all__ = ["WeightSummary", "inspect"]

_PROJECTORS = ("clip", "mmproj")
_UNITS = ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0))


class WeightSummary(Struct, frozen=True):
    """A summary of a GGUF file.

    kind: the kind of layer.
    size: the number of parameters, such as `8.0B`.
    file_type: the mixture of tensor types."""

    kind: Literal["model", "projector", "adapter"]
    family: str
    size: str
    file_type: str
    is_split: bool


def inspect(path: Path) -> WeightSummary:
    """Read the header of a file. Raises GGUFError."""
    from chaski.formats.gguf import open_gguf

    with open_gguf(path) as file:
        family = file.architecture
        kind = file.get("general.type", str, "model")
        count = sum(prod(tensor.shape) for tensor in file.tensors.values())
        is_split = file.get("split.count", int, 1) > 1
        return WeightSummary(_layer_kind(kind, family), family, _size(count), file_type(file), is_split)


def _layer_kind(kind: str, family: str) -> Literal["model", "projector", "adapter"]:
    if kind == "adapter":
        return "adapter"
    return "projector" if family in _PROJECTORS or kind in _PROJECTORS else "model"


def _size(count: int) -> str:
    """Format a count in Ollama's notation: `8.0B`, `134.52M`."""
    for unit, letter, digits in _UNITS:
        if count >= unit:
            is_whole = count % unit == 0 and letter != "B"
            return f"{count / unit:.{0 if is_whole else digits}f}{letter}"
    return str(count)
