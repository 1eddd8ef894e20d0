"""The cells of a model's cache as characters, each for the sequence that holds most of its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from chaski.cli.top_lines import BOLD, FREE, Line, fit

__all__ = ["cell_lines"]

_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHARED, _EMPTY, _OTHER = "+", "·", "#"
_COLORS = ("32", "36", "35", "31")
_MOST_CELLS = 1 << 22


def cell_lines(picture: Any, width: int, height: int) -> list[Line]:
    """Draw `/api/live/cache` in `width` columns and `height` lines, one or more cells per character."""
    slots, kinds = picture["slots"], picture["kinds"]
    lines = list(_slot_lines(slots, width))[: max(height // 3, 2)]
    rows = max((height - len(lines) - 1) // max(len(kinds), 1) - 1, 1)
    for kind in kinds:
        lines += _kind_lines(kind, width, rows)
    lines.append([(fit(f"{_SHARED} shared   {_EMPTY} free   a sign for each slot", width), "")])
    return lines[:height]


def _slot_lines(slots: Any, width: int) -> Iterator[Line]:
    """Yield the slots that hold tokens, several per line, with running ones in bold."""
    line: Line = []
    taken = 0
    for number, slot in enumerate(slots):
        if slot["tokens"]:
            text = f"{_sign(number)}: {slot['tokens']} {'tokens' if slot['is_running'] else 'kept'}   "
            if line and taken + len(text) > width:
                yield line
                line, taken = [], 0
            style = _color(number) + (f";{BOLD}" if slot["is_running"] else "")
            line.append((fit(text, min(len(text), width)), style))
            taken += len(text)
    yield line or [("no slot holds tokens", "")]


def _kind_lines(kind: Any, width: int, rows: int) -> Iterator[Line]:
    """Yield a title, then the cells line by line."""
    count = min(int(kind["cells"]), _MOST_CELLS)
    each = max(-(-count // (width * rows)), 1)
    held: dict[int, set[int]] = {}
    for sequence, first, _, length, step in kind["runs"]:
        for index in range(min(length, count)):
            if 0 <= (cell := first + index * step) < count:
                held.setdefault(cell, set()).add(sequence)
    shared = sum(len(owners) > 1 for owners in held.values())
    what = "rows" if kind["is_state"] else "cells"
    title = f"{kind['kind']}: {len(held)} of {count} {what} taken, {shared} shared"
    yield [(fit(title + (f"; a sign is {each} {what}" if each > 1 else ""), width), BOLD)]
    owners = [Counter[int | None]() for _ in range(-(-count // each))]
    for cell, sequences in held.items():
        owners[cell // each][next(iter(sequences)) if len(sequences) == 1 else None] += 1
    for begin in range(0, len(owners), width):
        yield [_drawn(found) for found in owners[begin : begin + width]]


def _drawn(owners: Counter[int | None]) -> tuple[str, str]:
    if not owners:
        return _EMPTY, FREE
    owner = owners.most_common(1)[0][0]
    return (_SHARED, BOLD) if owner is None else (_sign(owner), _color(owner))


def _sign(slot: int) -> str:
    return _SIGNS[slot] if 0 <= slot < len(_SIGNS) else _OTHER


def _color(slot: int) -> str:
    return _COLORS[slot % len(_COLORS)]
