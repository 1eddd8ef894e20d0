"""Traces of plans: the items of each step that each thread computed, and when.

A backend that is opened with a `PlanTrace` adds every run of its plans to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

__all__ = ["Column", "PlanTrace", "TracedRun", "TracedStep"]


class Column(IntEnum):
    """The columns of pieces. `END` is the item after the last one; times are in nanoseconds."""

    THREAD = 0
    STEP = 1
    PHASE = 2
    BEGIN = 3
    END = 4
    STARTED = 5
    ENDED = 6


class TracedStep(Struct, frozen=True):
    """A step of a plan.

    `weights` names its matrices, which take `weight_bytes`. Each row of the dimension `rows` reads the share
    `row_share` of them. For each row, the threads divide `divided_bytes` of activations among them, and each
    thread reads `shared_bytes`. For each row of `cells`, a run reads `cell_bytes` of keys and values.
    """

    operation: str
    weights: str = ""
    weight_bytes: int = 0
    row_share: float = 1.0
    rows: str | None = None
    divided_bytes: int = 0
    shared_bytes: int = 0
    cells: str | None = None
    cell_bytes: int = 0

    def bytes_read(self, sizes: Mapping[str, int]) -> float:
        """Bytes of weights, keys and values that a run of these sizes reads at least once."""
        rows = 0 if self.rows is None else sizes[self.rows]
        cells = 0 if self.cells is None else sizes[self.cells]
        return self.weight_bytes * min(1.0, rows * self.row_share) + self.cell_bytes * cells


class TracedRun(Struct, frozen=True, eq=False):
    """A run of a plan. Times are nanoseconds of `time.perf_counter_ns`.

    `pieces` (n, 7): each row describes items that a thread took at once, ordered by thread, then by time.
    """

    steps: Sequence[TracedStep]
    sizes: Mapping[str, int]
    launched: int
    joined: int
    """The time at which the caller began to compute as well."""
    ended: int
    pieces: npt.NDArray[np.int64]


class PlanTrace(Struct):
    """All runs of the plans of a backend.

    `cut_for`: the number of threads for which the work of each step is cut into pieces, regardless of how
    many compute them; None for the actual number of threads.
    """

    cut_for: int | None = None
    runs: list[TracedRun] = field(default_factory=list)
