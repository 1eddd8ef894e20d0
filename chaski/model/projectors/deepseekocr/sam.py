"""SAM's image encoder (Kirillov et al. 2023, arXiv 2304.02643) with two more convolutions.

Most layers attend within windows. Scores depend on the distances of rows and of columns (Li et al. 2022,
arXiv 2112.01526): s · q k + q H[rows apart] + q W[columns apart]. The last two products are computed for all
rows and columns of keys and appended to the query. A key is followed by a 1 at its row and at its column, so
the score is a single product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVShape, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, Joined, LayerNorm, Linear, Module, PatchEmbedding, attention
from chaski.model.multimodal import FurtherAttention
from chaski.model.projectors.deepseekocr.tables import Arrays, Mixture, SquareTable, linear, mixed

__all__ = ["SamConfig", "Tower", "halved"]

_EPS = 1e-6
_COLORS = 3
_KERNEL = 3
_IN_WINDOWS = "windows"


class SamConfig(Struct, frozen=True, kw_only=True):
    """side: patches along a side of the largest view. window: those along a side of a window.

    are_windowed: for each layer, whether it attends within windows.
    inner, channels: the sizes of the layers' networks, and of the maps that the convolutions make.
    """

    hidden_size: int
    num_heads: int
    patch_size: int
    side: int
    window: int
    inner: int
    are_windowed: tuple[bool, ...]
    channels: tuple[int, int, int]

    @classmethod
    def read(cls, file: GGUFFile) -> SamConfig:
        """Read keys, and the sizes that only tensors have. Raises ModelError if they do not fit."""
        prefix = f"{file.architecture}.vision"
        count, heads = (file.get(f"{prefix}.sam.{key}_count", int) for key in ("block", "head"))
        size, window = (file.get(f"{prefix}.{key}", int) for key in ("sam.embedding_length", "window_size"))
        side = shape_of(file, "v.sam.pos_embd.weight", 4)[1]
        if min(count, heads, window) < 1 or size % heads:
            raise ModelError(
                f"{file.path}: SAM has {count} layers of {size} elements in {heads} heads, and windows of "
                f"{window} patches"
            )
        return cls(
            hidden_size=size,
            num_heads=heads,
            patch_size=shape_of(file, "v.sam.patch_embd.weight", 4)[2],
            side=side,
            window=window,
            inner=shape_of(file, "v.sam.blk.0.mlp.lin1.weight", 2)[0],
            are_windowed=tuple(_is_windowed(file, layer, side, window) for layer in range(count)),
            channels=(
                shape_of(file, "v.sam.neck.0.weight", 4)[0],
                shape_of(file, "v.sam.net_2.weight", 4)[0],
                shape_of(file, "v.sam.net_3.weight", 4)[0],
            ),
        )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def heads(self, side: int) -> KVShape:
        """Return the keys and values of attention over a square of `side` patches."""
        return KVShape(self.num_heads, self.head_size + 2 * side, self.head_size)

    @property
    def in_windows(self) -> FurtherAttention:
        """The attention in windows, whose patches are all those of whole windows."""
        most = _whole(self.side, self.window) ** 2
        return FurtherAttention(_IN_WINDOWS, most, self.heads(self.window))


def shape_of(file: GGUFFile, name: str, dims: int) -> tuple[int, ...]:
    """Return the shape of a tensor. Raises ModelError if it is missing, or has another number of sides."""
    if name not in file.tensors or len(file.tensors[name].shape) != dims:
        raise ModelError(f"{file.path}: tensor {name} is missing, or does not have {dims} sides")
    return file.tensors[name].shape


def _is_windowed(file: GGUFFile, layer: int, side: int, window: int) -> bool:
    """Return whether a layer has the distances within a window, not those of the whole table of places."""
    name = f"v.sam.blk.{layer}.attn.pos_h.weight"
    count = shape_of(file, name, 2)[0]
    if count not in (2 * window - 1, 2 * side - 1):
        raise ModelError(
            f"{file.path}: {name} has {count} distances; windows of {window} patches have {2 * window - 1}, "
            f"and views of {side} patches {2 * side - 1}"
        )
    return count == 2 * window - 1


def halved(side: int) -> int:
    """Return the side of a map after a convolution with stride 2."""
    return -(-side // 2)


def _whole(side: int, window: int) -> int:
    return -(-side // window) * window


class Square(Struct, frozen=True):
    """The inputs for attention within squares of up to `side` patches: those of views, or windows.

    name: what their names begin with. mixture: the distances of a smaller view, from the file's.
    """

    name: str
    side: int

    def arrays(self, patches: int, rows: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Arrays:
        """Return the inputs for squares of `patches`². `rows`: each patch's number in its square."""
        places = np.stack(np.divmod(rows, patches)).astype(np.int32)
        marks = np.zeros((len(rows), 2, self.side), np.float32)
        for axis in range(2):
            marks[np.arange(len(rows)), axis, patches - 1 - places[axis]] = 1
        return {
            f"{self.name} row": places[0],
            f"{self.name} column": places[1],
            f"{self.name} marks": marks.reshape(len(rows), -1),
            **self._distances.arrays(*linear(2 * self.side - 1, 2 * patches - 1)),
        }

    def declare(self, graph: Graph, patches: Dim) -> Relative:
        row, column = (
            graph.input(f"{self.name} {axis}", (patches,), DType.I32) for axis in ("row", "column")
        )
        marks = graph.input(f"{self.name} marks", (patches, 2 * self.side), DType.F32)
        distances = Dim(f"{self.name} distances", 2 * self.side - 1)
        return Relative(self.side, (row, column), marks, self._distances.declare(graph, distances))

    @property
    def _distances(self) -> Mixture:
        return Mixture(f"{self.name} distance", 2)


class Relative(Struct, frozen=True):
    """Declared inputs of `Square`. places: the row and column of each patch. marks: what follows keys."""

    side: int
    places: tuple[Tensor, Tensor]
    marks: Tensor
    distances: list[tuple[Tensor, Tensor]]


class Attention(Module):
    joined = Joined("qkv", ("q", "k", "v"))

    def __init__(self, config: SamConfig, side: int) -> None:
        size = config.hidden_size
        self._heads, self._size = config.num_heads, config.head_size
        self.q, self.k, self.v, self.out = (Linear(size, size) for _ in range(4))
        self.pos_h, self.pos_w = (Embedding(2 * side - 1, config.head_size) for _ in range(2))

    def __call__(self, x: Tensor, relative: Relative, history: LayerCache) -> Tensor:
        heads, size, side = self._heads, self._size, relative.side
        q, k, v = (part(x).reshape(heads, size) for part in (self.q, self.k, self.v))
        by_axis = [
            ops.relative_dots(q, mixed(table, relative.distances), places, side) * float(size**0.5)
            for table, places in zip((self.pos_h, self.pos_w), relative.places, strict=True)
        ]
        marks = ops.concat([(relative.marks, 2 * side * head, 1) for head in range(heads)])
        q = ops.concat([(q, 0, 1), (by_axis[0], size, 1), (by_axis[1], size + side, 1)])
        k = ops.concat([(k, 0, 1), (marks.reshape(heads, 2 * side), size, 1)])
        return self.out(attention(q, k, v, history, scale=size**-0.5))


class Network(Module):
    def __init__(self, size: int, inner: int) -> None:
        self.lin1, self.lin2 = Linear(size, inner), Linear(inner, size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.lin2(ops.gelu(self.lin1(x)))


class Block(Module):
    """A layer. `post_ln` is the norm between attention and network."""

    def __init__(self, config: SamConfig, is_windowed: bool) -> None:
        self.is_windowed = is_windowed
        self.pre_ln = LayerNorm(config.hidden_size, _EPS)
        self.attn = Attention(config, config.window if is_windowed else config.side)
        self.post_ln = LayerNorm(config.hidden_size, _EPS)
        self.mlp = Network(config.hidden_size, config.inner)


class Convolution(Module):
    """A convolution over all channels without a bias, as a product with the concatenated rows of a window."""

    def __init__(self, in_channels: int, channels: int, kernel: int = _KERNEL) -> None:
        self.weight = Weight(
            (channels, in_channels * kernel**2), stored=(channels, in_channels, kernel, kernel), split=0
        )

    def __call__(self, x: Tensor, windows: Sequence[tuple[Tensor, Tensor]] = ()) -> Tensor:
        """Return the map for `windows`, the rows under each element of a kernel and 0 for those outside."""
        parts = [ops.scale_rows(x.rows(rows), is_inside) for rows, is_inside in windows]
        x = ops.concat([(part, tap, len(parts)) for tap, part in enumerate(parts)]) if parts else x
        return ops.linear(x, self.weight)


def kernel_arrays(name: str, side: int, stride: int) -> Arrays:
    """Return the inputs of `kernel_inputs` for a map of `side`² rows, with zeros around it."""
    at = np.arange(-(-side // stride)) * stride + np.arange(_KERNEL)[:, None] - _KERNEL // 2
    is_in = (at >= 0) & (at < side)
    at = np.clip(at, 0, side - 1)
    rows = (at[:, None, :, None] * side + at[None, :, None, :]).reshape(_KERNEL**2, -1)
    inside = (is_in[:, None, :, None] & is_in[None, :, None, :]).reshape(_KERNEL**2, -1)
    return Mixture(name, _KERNEL**2).arrays(rows.astype(np.int32), inside.astype(np.float32))


class Tower(Module):
    def __init__(self, config: SamConfig, taps: int) -> None:
        c = config
        self._config = c
        self._places = SquareTable("place", c.side, taps)
        self.patch_embd = PatchEmbedding(c.patch_size, c.hidden_size)
        self.pos_embd = Embedding(c.side**2, c.hidden_size)
        self.pos_embd.weight.stored = (1, c.side, c.side, c.hidden_size)
        self.blk = [Block(c, is_windowed) for is_windowed in c.are_windowed]
        neck, middle, last = c.channels
        self.neck: list[Any] = [
            Convolution(c.hidden_size, neck, 1),
            LayerNorm(neck, _EPS),
            Convolution(neck, neck),
            LayerNorm(neck, _EPS),
        ]
        self.net_2, self.net_3 = Convolution(neck, middle), Convolution(middle, last)

    def arrays(self, patches: int) -> Arrays:
        """Return the inputs for a view of `patches`², without the pixels."""
        c, whole = self._config, _whole(patches, self._config.window)
        count = whole // c.window
        by_window = np.arange(whole**2).reshape(count, c.window, count, c.window).swapaxes(1, 2).reshape(-1)
        row, column = np.divmod(by_window, whole)
        is_patch = (row < patches) & (column < patches)
        shown = np.zeros(patches**2, np.int32)
        shown[(row * patches + column)[is_patch]] = np.flatnonzero(is_patch)
        begin = np.arange(whole**2, dtype=np.int32) // c.window**2 * c.window**2
        in_window = np.tile(np.arange(c.window**2, dtype=np.int32), count**2)
        return {
            **self._places.arrays(patches),
            **self._views.arrays(patches, np.arange(patches**2, dtype=np.int32)),
            **self._windows.arrays(c.window, in_window),
            f"{_IN_WINDOWS} spans": np.stack([begin, begin + c.window**2], axis=1),
            "to windows": np.where(is_patch, row * patches + column, 0).astype(np.int32),
            "is patch": is_patch[:, None].astype(np.float32),
            "from windows": shown,
            **kernel_arrays("neck", patches, 1),
            **kernel_arrays("half", patches, 2),
            **kernel_arrays("quarter", halved(patches), 2),
        }

    @property
    def _views(self) -> Square:
        return Square("view", self._config.side)

    @property
    def _windows(self) -> Square:
        return Square("window", self._config.window)

    def __call__(self, graph: Graph, patches: Dim, history: LayerCache, windows: LayerCache) -> Tensor:
        """Return the last map, a quarter of the view each way: (rows, channels)."""
        c = self._config
        x = self.patch_embd(graph.input("pixels", (patches, _COLORS * c.patch_size**2), DType.F32))
        x = x + self._places(graph, self.pos_embd, patches)
        within = _Windows.declare(graph, patches, Dim(_IN_WINDOWS, c.in_windows.max_cells))
        view, window = self._views.declare(graph, patches), self._windows.declare(graph, within.dim)
        for block in self.blk:
            h = block.pre_ln(x)
            if block.is_windowed:
                h = within.taken_out(block.attn(within.put_in(h), window, windows))
            else:
                h = block.attn(h, view, history)
            x = x + h
            x = x + block.mlp(block.post_ln(x))
        return self._convolved(graph, x, patches)

    def _convolved(self, graph: Graph, x: Tensor, patches: Dim) -> Tensor:
        half = halved(self._config.side)
        dims = patches, Dim("half", half**2), Dim("quarter", halved(half) ** 2)
        neck, halves, quarters = (
            Mixture(name, _KERNEL**2).declare(graph, dim)
            for name, dim in zip(("neck", "half", "quarter"), dims, strict=True)
        )
        first, norm, second, last_norm = self.neck
        x = last_norm(second(norm(first(x)), neck))
        return self.net_3(self.net_2(x, halves), quarters)


class _Windows(Struct, frozen=True):
    """The inputs that put patches into windows, which are completed with zeros, and take them out again."""

    dim: Dim
    numbers: Tensor
    is_patch: Tensor
    places: Tensor

    @classmethod
    def declare(cls, graph: Graph, patches: Dim, dim: Dim) -> _Windows:
        return cls(
            dim,
            graph.input("to windows", (dim,), DType.I32),
            graph.input("is patch", (dim, 1), DType.F32),
            graph.input("from windows", (patches,), DType.I32),
        )

    def put_in(self, x: Tensor) -> Tensor:
        return ops.scale_rows(x.rows(self.numbers), self.is_patch)

    def taken_out(self, x: Tensor) -> Tensor:
        return x.rows(self.places)
