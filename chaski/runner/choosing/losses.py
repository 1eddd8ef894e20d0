"""The loss of a file against full precision: its mean KL divergence in nats, measured or published.

`losses.json` has the divergences of types that llama.cpp's developers published for one model, and those that
`tools/measure_types.py` measured on small models. Models differ, so another model's figure only ranks types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaski.runner.evaluation.records import Subject, stored_evaluations

__all__ = ["FLOATS", "Loss", "loss_of_type", "measured_loss", "published"]

FLOATS = ("F32", "BF16", "F16")
_BY_IMPORTANCE = ("UD-", "I1-")


class Loss(Struct, frozen=True):
    """A mean KL divergence in nats; `source` is "measured" on this file or "published" for another model."""

    divergence: float
    source: str


@cache
def published() -> Mapping[str, Any]:
    """Return the table of `losses.json`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("losses.json").read_text())
    return found


def measured_loss(subject: Subject) -> Loss | None:
    """Return the divergence from a larger file that `chaski eval --against` stored, on the longest text."""
    found = [
        scores["divergence"]
        for description, scores in stored_evaluations()
        if description.model.identity == subject.identity
        and description.against is not None
        and description.against.bytes > subject.bytes
    ]
    if not found:
        return None
    return Loss(float(max(found, key=len).mean()), "measured")


def loss_of_type(type: str, by_importance: bool = False) -> Loss | None:
    """Return the published divergence of a type such as `Q4_K_M` or `UD-Q4_K_XL`; None for others.

    by_importance: the file was quantized with an importance matrix
    """
    name = type.upper()
    if name.startswith(_BY_IMPORTANCE):
        by_importance, name = True, name.partition("-")[2]
    if name in FLOATS:
        return Loss(0.0, "published")
    table = published()["published"]
    tables = [table["by_importance"], table["plain"]]
    for each in tables if by_importance else tables[::-1]:
        for spelling in _spellings(name):
            if spelling in each:
                return Loss(each[spelling], "published")
    return None


def _spellings(name: str) -> list[str]:
    """Return the type and its nearest published relative: publishers add sizes such as `_L` and `_XL`."""
    stem = name.removesuffix("_XL").removesuffix("_L")
    return [name] if stem == name else [name, f"{stem}_M", stem]
