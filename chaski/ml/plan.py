"""Plans, which are launched with arrays, and launches, whose results are fetched on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ModelError

__all__ = ["FailedRowsError", "FromLaunch", "Input", "Launch", "Plan", "ReadsAhead", "misfit"]


class Launch(Protocol):
    """One run of a plan. Later runs do not change its results."""

    def wait(self) -> None:
        """Wait until all results are computed. `rows` waits by itself."""

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> npt.NDArray[np.float32]:
        """Wait for rows of a result and fetch them; with `end` None, up to the last row.

        Only these rows have to leave the device. The array may be a view that the plan's next launch
        overwrites. Callers that need the rows after that must copy them or call this again.
        """

    def drop(self, output: str) -> None:
        """Release a result, so that a later run need not keep it. `FromLaunch` may still refer to it."""


class FailedRowsError(ModelError):
    """Weights that some rows of a launch need cannot be read. All other rows are right."""

    def __init__(self, message: str, rows: Mapping[str, Sequence[int]]) -> None:
        """`rows`: the failed rows of each run-time dimension, by its name."""
        super().__init__(message)
        self.rows = rows


class FromLaunch(Struct, frozen=True, eq=False):
    """An int32 input with elements from a result of an earlier launch, which the host need not read.

    `values` (n,) are the elements, except at `places`: the element places[j] is taken from row rows[j] and
    `column` of the `output` of `launch`, with rows laid out flat. In this way the ids of `ops.top_k` become
    the tokens of the next batch: the first id of a row is in column `max_k`.
    """

    values: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    launch: Launch
    output: str
    rows: npt.NDArray[np.int32]
    column: int

    def __len__(self) -> int:
        return len(self.values)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.int32]:
        return self.fetch()

    def fetch(self) -> npt.NDArray[np.int32]:
        """Return the elements on the host, for backends that compute there."""
        found = self.launch.rows(self.output)
        filled = self.values.copy()
        filled[self.places] = found.reshape(len(found), -1)[self.rows, self.column]
        return filled


Input = npt.NDArray[Any] | FromLaunch
"""int32, except dense masks and inputs declared as float32."""


class Plan(Protocol):
    """A compiled graph. Only one call at a time is allowed for all plans of a backend and its siblings."""

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> Launch:
        """Begin to compute with a value for every input of the graph.

        The values are not read after this returns. They determine the sizes of their leading dimensions;
        `sizes` contains the sizes of dimensions that no input has. Launches are computed in order. Raises
        ValueError if the values do not fit the graph.
        """


@runtime_checkable
class ReadsAhead(Protocol):
    """A plan that can load weights into caches near the computing device before its inputs arrive."""

    @property
    def bytes_to_read_ahead(self) -> int:
        """Bytes of weights, of all plans together, that fit into the caches."""

    def read_ahead(self, descriptor: int, most: int) -> int | None:
        """Read up to `most` bytes of the next launch's weights ahead -> the bytes that are ready.

        None if it stopped early because the descriptor became readable.
        """


def misfit(inputs: Mapping[str, Input], declared: Mapping[str, object]) -> ValueError:
    """Return the error for inputs that are not exactly those of the graph."""
    return ValueError(f"the inputs are {', '.join(declared)}; given: {', '.join(inputs)}")
