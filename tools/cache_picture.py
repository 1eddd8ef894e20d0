"""Draw `docs/cache.svg`, the cells over time in a real run: `python -m tools.cache_picture`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from chaski.kvcache import CausalCache, KVShape, KVTypes
from chaski.kvcache.batch import Batch
from chaski.ml.graph import DType, Rope
from chaski.ml.reference import ReferenceBackend

TARGET = Path(__file__).parent.parent / "docs" / "cache.svg"
SEQUENCES, CAPACITY = 3, 24
ROTATION = Rope(np.array([0.5], np.float32))
COLOURS = ("#3b78c3", "#d98324", "#4c9a57")
LEFT, TOP, STEP, CELL = 60, 70, 14, 7

# The event before each step, and the number of tokens of each sequence that the step computes.
SCRIPT: list[tuple[str, dict[int, int]]] = [
    ("A starts", {0: 8}),
    *[("", {0: 1})] * 3,
    ("B starts", {0: 1, 1: 6}),
    *[("", {0: 1, 1: 1})] * 4,
    ("C begins like A", {0: 1, 1: 1, 2: 3}),
    *[("", {0: 1, 1: 1, 2: 1})] * 6,
    ("A is full, and drops half", {0: 1, 1: 1, 2: 1}),
    *[("", {0: 1, 1: 1, 2: 1})] * 3,
    ("B ends", {0: 1, 2: 1}),
    *[("", {0: 1, 2: 1})] * 2,
    ("D starts in B's place", {0: 1, 1: 9}),
    ("", {0: 1, 1: 1}),
    ("C ends", {0: 1, 1: 1}),
    *[("", {0: 1, 1: 1})] * 2,
]


@dataclass(frozen=True)
class Moment:
    """The cells of each sequence after a step, and the event before it."""

    event: str
    cells: list[list[int]]


def apply(cache: CausalCache, event: str) -> None:
    match event:
        case "C begins like A":
            cache.copy_prefix(0, 2, 8)
        case "B ends":
            cache.remove(1, 0)
        case "C ends":
            cache.remove(2, 0)
        case "A is full, and drops half":
            cache.remove(0, 2, 13)


def run() -> list[Moment]:
    shapes = [KVShape(1, 2, 2, ROTATION)]
    types = KVTypes(DType.F32, DType.F32)
    cache = CausalCache(ReferenceBackend(), shapes, SEQUENCES, CAPACITY, types, max_batch=32)
    moments = []
    for event, counts in SCRIPT:
        apply(cache, event)
        positions = [np.arange(cache.length(s), cache.length(s) + count) for s, count in counts.items()]
        together = np.concatenate(positions).astype(np.int32)
        sequences = np.repeat(list(counts), list(counts.values())).astype(np.int32)
        cache.start_forward(Batch(together, together, sequences, together[:0]))
        moments.append(Moment(event, [cache.cells(sequence).tolist() for sequence in range(SEQUENCES)]))
    return moments


def rectangle(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def text(x: float, y: float, words: str, turn: int = 0, anchor: str = "start") -> str:
    place = f'transform="translate({x:g} {y:g}) rotate({turn})" text-anchor="{anchor}"'
    return f'<text {place} font-family="sans-serif" font-size="11" fill="#222">{words}</text>'


def runs(cells: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Return runs of neighbouring cells with the same owners: first, last, owners."""
    for _, group in groupby(enumerate(sorted(cells)), lambda item: (item[1] - item[0], cells[item[1]])):
        numbers = [number for _, number in group]
        yield numbers[0], numbers[-1], cells[numbers[0]]


def run_of_cells(column: int, first: int, last: int, owners: tuple[int, ...], before: Set[int]) -> list[str]:
    """Draw a run of cells at a step: its owners' colours side by side, and a bar if it was just written."""
    x, y = LEFT + column * STEP, TOP + (SEQUENCES * CAPACITY - 1 - last) * CELL
    height = (last - first + 1) * CELL
    width = (STEP - 1) / len(owners)
    drawn = [rectangle(x + i * width, y, width, height, COLOURS[owner]) for i, owner in enumerate(owners)]
    written = {number: () for number in range(first, last + 1) if number not in before}
    for begin, end, _ in runs(written):
        top = TOP + (SEQUENCES * CAPACITY - 1 - end) * CELL
        drawn.append(rectangle(x + STEP - 4, top, 3, (end - begin + 1) * CELL, "#222"))
    return drawn


def drawing(moments: list[Moment]) -> str:
    num_cells = SEQUENCES * CAPACITY
    width, height = LEFT + len(moments) * STEP + 110, TOP + num_cells * CELL + 40
    parts = [
        rectangle(0, 0, width, height, "#fff"),
        rectangle(LEFT, TOP, len(moments) * STEP, num_cells * CELL, "#f1f1f1"),
    ]
    before: Set[int] = set()
    for column, moment in enumerate(moments):
        owners: dict[int, tuple[int, ...]] = {}
        for sequence, cells in enumerate(moment.cells):
            for number in cells:
                owners[number] = (*owners.get(number, ()), sequence)
        for first, last, who in runs(owners):
            parts += run_of_cells(column, first, last, who, before)
        before = owners.keys()
        if moment.event:
            x = LEFT + column * STEP
            parts.append(rectangle(x - 1, TOP - 4, 1, num_cells * CELL + 4, "#999"))
            parts.append(text(x + 4, TOP - 8, moment.event, turn=-28))
    for number in range(0, num_cells + 1, CAPACITY):
        parts.append(text(LEFT - 6, TOP + (num_cells - number) * CELL + 4, str(number), anchor="end"))
    parts.append(text(18, TOP + num_cells * CELL / 2, "cell", turn=-90, anchor="middle"))
    parts.append(text(LEFT + len(moments) * STEP / 2, height - 14, "step", anchor="middle"))
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n{body}\n</svg>\n'


def main() -> None:
    TARGET.write_text(drawing(run()))


if __name__ == "__main__":
    main()
