"""Square feature maps as rows, and the numbers of the rows that convolutions read.

A map of side² places has side² + 1 rows: its places line by line, then a row of zeros, which stands for what
lies outside the map. It stays zero through norms, activations and products.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml.graph import Dim, DType, Graph, Tensor

__all__ = ["Maps", "Window", "halved"]

I32 = npt.NDArray[np.int32]


def halved(side: int) -> int:
    """Return the side of a map after a convolution with stride 2."""
    return -(-side // 2)


class Window(Struct, frozen=True):
    """The window of a convolution over a map of `side`² places: a kernel of `kernel`² elements."""

    side: int
    kernel: int
    stride: int

    def rows(self) -> I32:
        """Return the rows under each element of the kernel (kernel², places + 1).

        What is missing at the borders is shared between both sides, the larger half after the map.
        """
        side, count = self.side, self._count
        before = max((count - 1) * self.stride + self.kernel - side, 0) // 2
        places = np.arange(count) * self.stride - before + np.arange(self.kernel)[:, None]
        inside = (places >= 0) & (places < side)
        rows = places[:, None, :, None] * side + places[None, :, None, :]
        rows[~(inside[:, None, :, None] & inside[None, :, None, :])] = side**2
        flat = rows.reshape(self.kernel**2, count**2)
        return np.concatenate([flat, np.full((len(flat), 1), side**2)], axis=1).astype(np.int32)

    def arrays(self) -> dict[str, I32]:
        """Return the inputs that index the rows."""
        return dict(zip(self._names, self.rows(), strict=True))

    def declare(self, graph: Graph) -> list[Tensor]:
        """Declare these inputs."""
        dim = Dim(f"map {self._count}", self._count**2 + 1)
        return [graph.input(name, (dim,), DType.I32) for name in self._names]

    @property
    def _count(self) -> int:
        return -(-self.side // self.stride)

    @property
    def _names(self) -> list[str]:
        return [f"window {self.side} {self.kernel} {self.stride} {tap}" for tap in range(self.kernel**2)]


class Maps:
    """The inputs of a graph that index rows of maps, each declared where it is first used."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._windows: dict[Window, list[Tensor]] = {}
        self._places: dict[int, Tensor] = {}

    def windows(self, window: Window) -> list[Tensor]:
        """Return the indices of the rows under each element of the kernel."""
        if window not in self._windows:
            self._windows[window] = window.declare(self._graph)
        return self._windows[window]

    def places(self, side: int, dim: Dim) -> Tensor:
        """Return the indices of the places of a map, without the row of zeros."""
        if side not in self._places:
            self._places[side] = self._graph.input(f"places {side}", (dim,), DType.I32)
        return self._places[side]
