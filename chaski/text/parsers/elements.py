"""Values written as nested tags, as MiniMax M3 writes lists and objects."""

from __future__ import annotations

from typing import Any

from chaski.text.parsers.schema import Schema, typed

_MAX_DEPTH = 64


def read_element(text: str, mark: str, schema: Schema, depth: int = 0) -> Any:
    """Return a value that is written as nested tags: the items of a list, or the keys of an object."""
    parts = _children(text, mark) if depth < _MAX_DEPTH else None
    kinds = schema.kinds()
    if parts is None:
        if not text and kinds == {"array"}:
            return []
        return {} if not text and kinds == {"object"} else typed(text, schema)
    if {name for name, _ in parts} == {"item"} and "array" in kinds:
        return [read_element(inner, mark, schema.items(), depth + 1) for _, inner in parts]
    return {name: read_element(inner, mark, schema.member(name), depth + 1) for name, inner in parts}


def _children(text: str, mark: str) -> list[tuple[str, str]] | None:
    """Return names and contents of the tags in a text; None if the text contains anything else."""
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        if not text.startswith(f"{mark}<", position):
            return None
        end = text.find(">", position + len(mark))
        name = text[position + len(mark) + 1 : end] if end >= 0 else ""
        last = _matching(text, f"{mark}<{name}>", f"{mark}</{name}>", end + 1)
        if not name or last < 0:
            return None
        found.append((name, text[end + 1 : last]))
        position = last + len(f"{mark}</{name}>")
    return found or None


def _matching(text: str, opening: str, closing: str, start: int) -> int:
    """Return the position of the closing tag of the element that begins before `start`; -1 without one."""
    depth, position = 1, start
    while True:
        closed = text.find(closing, position)
        if closed < 0:
            return -1
        opened = text.find(opening, position, closed)
        if opened >= 0:
            depth, position = depth + 1, opened + len(opening)
            continue
        depth -= 1
        if depth == 0:
            return closed
        position = closed + len(closing)
