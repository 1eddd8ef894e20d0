"""Changes of inputs: of any bytes, of texts by their words, and of JSON by its values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from fuzz.target import Mutation

__all__ = ["NUMBERS", "mixed", "mutate_bytes", "mutate_json", "mutate_value", "words"]

NUMBERS = (0, 1, 2, 3, 7, 255, 256, 2**15, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**31, 2**63, 2**64, 10**40, "", "x", "\0", "a" * 300,
    "\ud800", "é😀", "1", "null", [], {}, [[]], [None], {"": None}, {"type": "object"}, [1, "a", {}],
)  # fmt: skip
_MOST = 1 << 16


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change a few bytes: flip, overwrite, cut, repeat, insert, or write a number of 1 to 8 bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place = rng.randrange(len(changed) + 1)
        length = min(rng.choice((1, 1, 2, 4, 8, 16, 64)), len(changed) - place)
        match rng.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(changed):
                changed[place] = rng.randrange(256)
            case 2:
                del changed[place : place + length]
            case 3:
                changed[place:place] = changed[place : place + length]
            case 4:
                width = rng.choice((1, 2, 4, 8))
                number = (rng.choice(NUMBERS) + rng.choice((0, 0, 1, -1))) % 256**width
                changed[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))
            case 5 if len(changed) > 1:
                other = rng.randrange(len(changed))
                changed[place:place] = changed[other : other + rng.randrange(64)]
            case _:
                changed[place:place] = rng.randbytes(rng.choice((1, 2, 4)))
    return bytes(changed[:_MOST])


def words(*vocabulary: str) -> Mutation:
    """Return a mutation of texts, which also moves, inserts and often repeats words and marks."""
    known = [word.encode() for word in vocabulary]

    def mutate(data: bytes, rng: random.Random) -> bytes:
        parts = re.findall(rb"\w+|\s+|[^\w\s]", data)
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            place = rng.randrange(len(parts) + 1)
            match rng.randrange(6):
                case 0:
                    del parts[place : place + rng.choice((1, 1, 2, 5))]
                case 1 if parts:
                    begin = rng.randrange(len(parts))
                    parts[place:place] = parts[begin : begin + rng.choice((1, 2, 8, 20))]
                case 2 if place < len(parts):
                    parts[place] = rng.choice(known)
                case 3 if place < len(parts) and parts:
                    other = rng.randrange(len(parts))
                    parts[place], parts[other] = parts[other], parts[place]
                case 4:
                    begin = rng.randrange(len(parts) + 1)
                    parts[place:place] = parts[begin : begin + 1] * rng.choice((10, 100, 2000))
                case _:
                    parts.insert(place, rng.choice(known))
        return b"".join(parts)[:_MOST]

    return mixed(mutate, mutate, mutate_bytes)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Change values of a JSON text; of another text, or sometimes, its bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = mutate_value(value, rng)
    return json.dumps(value).encode()[:_MOST]


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Change one place of a JSON value."""
    places = list(_places(value))
    if not places:
        return _other(value, rng)
    container, key = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, deepcopy(_from(places, rng)))
        case 1:
            name = rng.choice((f"{key}x", "", "type", "model"))
            container[name] = deepcopy(container[key])
        case 2 | 3:
            container[key] = deepcopy(_from(places, rng))
        case 4:
            container[key] = [container[key]]
        case _:
            container[key] = _other(container[key], rng)
    return value


def mixed(*mutations: Mutation) -> Mutation:
    """Return a mutation that does one of these."""
    return lambda data, rng: rng.choice(mutations)(data, rng)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container and key or index in it."""
    pending = [value]
    while pending:
        container = pending.pop()
        if isinstance(container, dict | list):
            keys: Sequence[Any] = list(container) if isinstance(container, dict) else range(len(container))
            for key in keys:
                yield container, key
                pending.append(container[key])


def _from(places: Sequence[tuple[Any, Any]], rng: random.Random) -> Any:
    container, key = rng.choice(places)
    return container[key]


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, str) and value and rng.random() < 0.5:
        return mutate_bytes(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((1, -1, 2**31, -(2**31)))
    return deepcopy(rng.choice(_VALUES))
