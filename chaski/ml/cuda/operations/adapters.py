"""The changes of LoRA adapters to products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.arena import Buffer
from chaski.ml.cuda.adapter_slots import CUDAAdapterSlots
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Count, Derived, Kernel, Lowering, Made, Sizes, Staged
from chaski.ml.graph import AdapterTable, Dim, Tensor, width

__all__ = ["adapt"]

_LANES = 16
_PROGRAM = Program("adapters")


def adapt(
    lowering: Lowering, node: Tensor, y: Tensor, x: Tensor, lists: Tensor, uses: Tensor, table: AdapterTable
) -> None:
    slots = table.handle
    assert isinstance(slots, CUDAAdapterSlots), "a table of another backend"
    entries, starts, dim = _uses_of_rows(lowering, lists, uses, table, slots)
    leading, rows = x.shape[0], lowering.dim(node)
    assert isinstance(leading, Dim)
    t = Buffer(4 * leading.maximum * table.max_width, 1)

    def down(sizes: Sizes) -> Kernel:
        grid = (sizes[dim], table.max_width // _LANES, 1)
        return Kernel(_PROGRAM, "lora_down", grid, 4 * _LANES, 4 * 4 * _LANES)

    def up(sizes: Sizes) -> Kernel:
        return Kernel(_PROGRAM, "lora_up", (-(-sizes[rows] * width(node) // 256), 1, 1), 256)

    arguments = (
        *(x, width(x), slots, table.matrices, int(node.attributes["matrix"]), entries, Count(dim), t),
        *(y, lowering.count(node), width(node), starts, lowering.new(node)),
    )
    lowering.step(down, *arguments)
    lowering.step(up, *arguments)


def _uses_of_rows(
    lowering: Lowering, lists: Tensor, uses: Tensor, table: AdapterTable, slots: CUDAAdapterSlots
) -> tuple[Staged, Staged, str]:
    """Return the adapters of all rows in order: their entries, each row's first, and the number's name."""
    known = lowering.shared_parts.get(("adapters", lists))
    if known is not None:
        found: tuple[Staged, Staged, str] = known
        return found
    leading = lists.shape[0]
    assert isinstance(leading, Dim)
    names = lists.attributes["name"], uses.attributes["name"]
    dim = f"adapters of {names[0]}"
    lowering.dims[dim] = leading.maximum * (table.max_width // _LANES)
    entries, starts = Staged(lowering.dims[dim], 4, np.int32), Staged(leading.maximum + 1, 1, np.int32)

    def make(inputs: Mapping[str, npt.NDArray[Any]], _: Sizes) -> Made:
        of_rows, given = (inputs[name] for name in names)
        parts, firsts = rows_with_adapters(of_rows.reshape(-1), given.reshape(-1, 3), slots, table.max_width)
        return [parts, firsts], {dim: len(parts)}

    lowering.derived.append(Derived((entries, starts), make))
    lowering.shared_parts["adapters", lists] = entries, starts, dim
    return entries, starts, dim


def rows_with_adapters(
    lists: npt.NDArray[np.int32], uses: npt.NDArray[np.int32], slots: CUDAAdapterSlots, max_width: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return each row's adapters: (n, 4) [row, slot, place of its t, bits of the scale], (rows + 1,) firsts.

    Raises ValueError for lists or slots that do not exist, and if the t of a row exceed `max_width` floats.
    """
    numbers, of_lists = np.unique(uses[:, 0], return_inverse=True)
    is_known = bool(np.all((uses[:, 1] >= 0) & (uses[:, 1] < slots.slots))) and bool(
        np.all((lists >= -1) & (lists < len(numbers)))
    )
    if not is_known or not np.array_equal(of_lists, uses[:, 0]) or np.any(np.diff(uses[:, 0]) < 0):
        raise ValueError(f"adapters: lists {lists.tolist()!r:.80} of {uses.tolist()!r:.80} do not exist")
    firsts = np.searchsorted(uses[:, 0], np.arange(len(numbers) + 1))
    counts = np.where(lists < 0, 0, np.diff(firsts, append=firsts[-1])[lists]) if len(numbers) else 0 * lists
    starts = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    rows = np.repeat(np.arange(len(lists)), counts)
    chosen = firsts[lists[rows]] + np.arange(len(rows)) - starts[rows]
    widths = np.array([slots.width(slot) for slot in uses[chosen, 1].tolist()], np.int64)
    if np.any(np.bincount(rows, widths, len(lists)) > max_width):
        raise ValueError("adapters: those of a row have too many ranks together")
    places = np.cumsum(widths) - widths
    parts = np.stack([rows, uses[chosen, 1], places, uses[chosen, 2]], axis=1).astype(np.int32)
    return parts, starts
