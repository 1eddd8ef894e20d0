"""Plans, which are launched with arrays, and launches, whose results are fetched when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

__all__ = ["FromLaunch", "Input", "Launch", "Plan", "ReadsAhead", "misfit"]


class Launch(Protocol):
    """One run of a plan. Its results belong to it: later runs do not change them."""

    def wait(self) -> None:
        """Wait until all results are computed. `rows` does so itself."""

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> npt.NDArray[np.float32]:
        """Fetch rows of a result (None: to its last one), when they are computed.

        Nothing else has to leave the device. The array may be a view that the plan's next launch overwrites:
        callers that need the rows after that copy them, or call this again.
        """

    def drop(self, output: str) -> None:
        """Fetch no more rows of a result: a later run need not keep it. `FromLaunch` may still name it."""


class FromLaunch(Struct, frozen=True, eq=False):
    """An int32 input with elements from a result of an earlier launch, which the host need not see.

    `values` (n,) are the elements, but for those at `places`, which stand for any: place j gets what `output`
    of `launch` has at (rows[j], column) where a row is laid out flat. So the ids of `ops.top_k` become the
    tokens of the next batch: the first one of a row is in column `max_k`.
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
        """The elements on the host, for backends that compute there."""
        found = self.launch.rows(self.output)
        filled = self.values.copy()
        filled[self.places] = found.reshape(len(found), -1)[self.rows, self.column]
        return filled


Input = npt.NDArray[Any] | FromLaunch
"""int32, except dense masks and inputs declared as float32."""


class Plan(Protocol):
    """A compiled graph. Not thread-safe: one call at a time, of all plans of a backend and its siblings."""

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> Launch:
        """Begin to compute with a value for every input of the graph.

        The values are not read any more when it returns. They say the sizes of their leading dimensions;
        `sizes` has those of dimensions that no input has. Earlier launches are computed before this one.
        Raises ValueError where values do not fit the graph.
        """


@runtime_checkable
class ReadsAhead(Protocol):
    """A plan whose weights can be brought nearer to the computing device before its inputs arrive."""

    @property
    def bytes_to_read_ahead(self) -> int:
        """Bytes of weights that stay there, of all plans together."""

    def read_ahead(self, descriptor: int, most: int) -> int | None:
        """Read weights of the next launch, up to `most` bytes of them -> the bytes that are ready for it.

        None: it ended before that, as there is something to read from the descriptor.
        """


def misfit(inputs: Mapping[str, Input], declared: Mapping[str, object]) -> ValueError:
    """Return the error for inputs that are not exactly those of the graph."""
    return ValueError(f"the inputs are {', '.join(declared)}; given: {', '.join(inputs)}")
