"""Large answers: the same JSON as small ones, made in pieces."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from chaski.server.network.jsons import dump
from chaski.server.network.large_json import Items, is_large, pieces

VALUES: dict[str, Any] = {
    "nothing": {},
    "an empty list": [],
    "numbers": list(range(100_000)),
    "floats": [number / 7 for number in range(10_000)],
    "objects": {"a": [{"i": number, "t": "ü\n", "n": None, "b": True} for number in range(5000)], "c": []},
    "a wide object": {f'"{number}': number for number in range(10_000)},
    "mixed items": [[1], {"a": list(range(10_000))}, "x" * 300_000, 2.5, []] * 3,
    "a text": {"a": 'é"\\\n😀' * 100_000},
    "halves of pairs": {"a": "\ud800" * 100_000, "b": "\ud800"},
    "depth": {"a": {"b": {"c": [[list(range(9000))]]}}},
}


@pytest.mark.parametrize("name", VALUES)
def test_pieces_are_what_is_written_at_once(name: str) -> None:
    found = list(pieces(VALUES[name]))
    assert b"".join(found) == dump(VALUES[name])
    assert max(map(len, found)) < 1 << 20
    assert len(found) > 1 or not is_large(VALUES[name]) or len(found[0]) < 1 << 17


@pytest.mark.parametrize("shape", [(0, 0), (1, 8), (3, 10_000), (2000, 12)])
def test_arrays_are_lists(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert json.loads(b"".join(pieces({"a": rows}))) == json.loads(dump({"a": rows})) == {"a": rows.tolist()}


def test_items_are_made_when_they_are_written() -> None:
    made: list[int] = []

    def make(number: int) -> dict[str, int]:
        made.append(number)
        return {"n": number}

    value = {"data": Items(range(10_000), make)}
    assert not is_large({"data": Items([1, 2], make)})
    assert is_large(value)
    found = pieces(value)
    next(found)
    assert 0 < len(made) < 10_000
    assert json.loads(b"".join(pieces(value))) == {"data": [{"n": number} for number in range(10_000)]}
    assert dump({"data": Items([1, 2], make)}) == b'{"data":[{"n":1},{"n":2}]}'
