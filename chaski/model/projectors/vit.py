"""The common parts of image encoders for text models: layers, and squares of patches as rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import LayerNorm, Linear, Module, RMSNorm, attention

__all__ = ["Block", "is_swapped", "square_inputs", "square_order", "squares_as_rows"]

I32 = npt.NDArray[np.int32]


class Block(Module):
    """A layer of CLIP and of SigLIP: two norms, attention, and two matrices with an `activation` in between.

    `is_swapped`: the file names the first of the matrices `down` and the second `up`.
    """

    def __init__(
        self,
        size: int,
        ffn_size: int,
        num_heads: int,
        eps: float,
        activation: Callable[[Tensor], Tensor] = ops.gelu_tanh,
        is_swapped: bool = False,
        norm: type[LayerNorm] | type[RMSNorm] = LayerNorm,
    ) -> None:
        self._heads = num_heads, size // num_heads
        self._activation = activation
        self._is_swapped = is_swapped
        self.ln1 = norm(size, eps)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (Linear(size, size) for _ in range(4))
        self.ln2 = norm(size, eps)
        first, second = Linear(size, ffn_size), Linear(ffn_size, size)
        self.ffn_up, self.ffn_down = (second, first) if is_swapped else (first, second)

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        x = x + self.attn(self.ln1(x), history)
        return x + self.ffn(self.ln2(x))

    def attn(self, h: Tensor, history: LayerCache) -> Tensor:
        """Return the attention of a norm of the states, in which every patch sees all."""
        q, k, v = (part(h).reshape(*self._heads) for part in (self.attn_q, self.attn_k, self.attn_v))
        return self.attn_out(attention(q, k, v, history, scale=self._heads[1] ** -0.5))

    def ffn(self, h: Tensor) -> Tensor:
        """Return the output of the feed-forward block."""
        up, down = self.ffn_up, self.ffn_down
        first, second = (down, up) if self._is_swapped else (up, down)
        return second(self._activation(first(h)))


def is_swapped(file: GGUFFile, size: int, ffn_size: int) -> bool:
    """Return whether the file swaps the names `up` and `down`, as llama.cpp's first converters did."""
    way_up = file.tensors.get("v.blk.0.ffn_down.weight")
    return way_up is not None and way_up.shape == (ffn_size, size) != (size, ffn_size)


def squares_as_rows(graph: Graph, x: Tensor, rows: Dim, square: int) -> Tensor:
    """Return the patches of each square as one row (rows, size · square²): the pixel shuffle.

    The inputs that index the patches contain the values of `square_inputs`.
    """
    size = x.shape[1]
    assert isinstance(size, int)
    parts = [x.rows(graph.input(_input(index), (rows,), DType.I32)) for index in range(square**2)]
    return ops.concat([(part, index * size, 1) for index, part in enumerate(parts)])


def square_inputs(grid: tuple[int, int], square: int, first: int = 0) -> dict[str, I32]:
    """Return, for each place in a square, the numbers of the patches there; both in row-major order.

    grid: the number of rows and columns of patches
    first: the number of the first patch
    """
    numbers = first + np.arange(grid[0] * grid[1], dtype=np.int32).reshape(grid)
    places = [(row, column) for row in range(square) for column in range(square)]
    return {
        _input(index): np.ascontiguousarray(numbers[row::square, column::square]).reshape(-1)
        for index, (row, column) in enumerate(places)
    }


def square_order(side: int, square: int) -> I32:
    """Return the indices of side² patches, square by square and row by row within each: (side²,)."""
    numbers = np.arange(side**2, dtype=np.int32).reshape(side // square, square, side // square, square)
    return numbers.swapaxes(1, 2).reshape(-1)


def _input(index: int) -> str:
    return f"square_{index}"
