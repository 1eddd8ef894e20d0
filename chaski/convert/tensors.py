"""The sources of a GGUF file's tensors. Each tensor's bytes are produced in parts.

Arrangements are views of the memory-mapped file, so permuting, splitting and stacking copy no bytes until a
part is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import ModelError
from chaski.formats.quant import QuantType, as_float32
from chaski.formats.quantize import quantize
from chaski.formats.safetensors import SafeTensor

__all__ = [
    "Adapted",
    "Arrange",
    "Concatenated",
    "Constant",
    "Integers",
    "Mapped",
    "PackedExperts",
    "Padded",
    "Planned",
    "Product",
    "SideBySide",
    "Sources",
    "TensorShape",
    "as_it_is",
    "equal_part",
    "parts_of",
    "transposed",
]

TensorShape: TypeAlias = tuple[int, ...]
Sources: TypeAlias = Mapping[str, SafeTensor]
F32: TypeAlias = NDArray[np.float32]
Arrange: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]

_ELEMENTS_AT_ONCE = 1 << 20


class Planned(Protocol):
    """A tensor of the file to write."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> TensorShape: ...

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        """The checkpoint tensors that it is made from, with the shape that each must have."""

    @property
    def packed(self) -> QuantType | None:
        """The type that the source is already stored in; None if any type can be written."""

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        """Yield the tensor's bytes in `type`, in parts."""


def as_it_is(values: NDArray[Any]) -> NDArray[Any]:
    """Return the view unchanged."""
    return values


def transposed(values: NDArray[Any]) -> NDArray[Any]:
    """Exchange the last two axes: (…, in, out) -> (…, out, in)."""
    return values.swapaxes(-1, -2)


def equal_part(index: int, count: int, values: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of part `index` from one tensor with `count` equal parts."""
    return values[index * len(values) // count : (index + 1) * len(values) // count]


class Mapped(Struct, frozen=True):
    """One checkpoint tensor, or several of the same shape in sequence.

    names: the checkpoint tensors.
    source_shape: the shape of each checkpoint tensor, by default `shape`.
    arrange: maps each checkpoint tensor to a view; the views together have the elements of `shape` in order.
    shift: a number added to every element, after `function`.
    function: a function applied to the elements in float32.
    """

    name: str
    shape: TensorShape
    names: tuple[str, ...]
    source_shape: TensorShape | None = None
    arrange: Arrange = as_it_is
    shift: float = 0.0
    function: Callable[[F32], F32] | None = None

    packed = None

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return dict.fromkeys(self.names, self.shape if self.source_shape is None else self.source_shape)

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        for name in self.names:
            source = sources[name]
            if not source.is_float:
                raise ModelError(f"{source.path}: tensor {name!r} holds {source.dtype}, not floats")
            for part in parts_of(self.arrange(source.data)):
                yield quantize(self._changed(np.asarray(part).reshape(-1, self.shape[-1])), type)

    def _changed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Apply `function` and `shift`. Without either, return the stored elements."""
        if self.function is not None:
            values = self.function(as_float32(values))
        return as_float32(values) + np.float32(self.shift) if self.shift else values


def parts_of(view: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield small parts of a view in order. With two or more axes, each part consists of whole rows."""
    if view.size <= _ELEMENTS_AT_ONCE or view.ndim == 1:
        yield view
        return
    step = _ELEMENTS_AT_ONCE * len(view) // view.size
    if step:
        yield from (view[begin : begin + step] for begin in range(0, len(view), step))
    else:
        for part in view:
            yield from parts_of(part)


class Concatenated(Struct, frozen=True):
    """The rows of several parts in sequence. The parts may come from one tensor."""

    name: str
    parts: tuple[Mapped, ...]

    packed = None

    @property
    def shape(self) -> TensorShape:
        return sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:]

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return {name: shape for part in self.parts for name, shape in part.sources.items()}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        for part in self.parts:
            yield from part.chunks(sources, type)


class SideBySide(Struct, frozen=True):
    """The columns of several matrices of the same shape in sequence."""

    name: str
    shape: TensorShape
    names: tuple[str, ...]

    packed = None

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        rows, columns = self.shape
        return dict.fromkeys(self.names, (rows, columns // len(self.names)))

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        rows, columns = self.shape
        step = max(1, _ELEMENTS_AT_ONCE // columns)
        for begin in range(0, rows, step):
            parts = [as_float32(sources[name].data[begin : begin + step]) for name in self.names]
            yield quantize(np.concatenate(parts, axis=1), type)


class Adapted(Struct, frozen=True):
    """A matrix plus `scale` times the product of a first (rows, rank) and a second factor (rank, columns).

    first, second: the names of tensors that each stack `count` factors; `index` selects one.
    """

    mapped: Mapped
    first: str
    second: str
    count: int
    index: int
    rank: int
    scale: float

    packed = None

    @property
    def name(self) -> str:
        return self.mapped.name

    @property
    def shape(self) -> TensorShape:
        return self.mapped.shape

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        rows, columns = self.shape
        factors = {self.first: (self.count, rows, self.rank), self.second: (self.count, self.rank, columns)}
        return {**self.mapped.sources, **factors}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        first, second = (as_float32(sources[name].data[self.index]) for name in (self.first, self.second))
        (name,) = self.mapped.names
        source, columns = sources[name], self.shape[-1]
        step = max(1, _ELEMENTS_AT_ONCE // columns)
        for begin in range(0, len(first), step):
            rows = slice(begin, begin + step)
            values = as_float32(source.data[rows]) + (first[rows] @ second) * np.float32(self.scale)
            yield quantize(values, type)


class Product(Struct, frozen=True):
    """The elementwise product of a vector and a matrix of one row, `factor`."""

    mapped: Mapped
    factor: str

    packed = None

    @property
    def name(self) -> str:
        return self.mapped.name

    @property
    def shape(self) -> TensorShape:
        return self.mapped.shape

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return {**self.mapped.sources, self.factor: (1, *self.shape)}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        (name,) = self.mapped.names
        vector, row = (as_float32(sources[each].data).ravel() for each in (name, self.factor))
        yield quantize((vector * row).reshape(1, -1), type)


class Padded(Struct, frozen=True):
    """A matrix followed by `extra` rows of zeros."""

    mapped: Mapped
    extra: int

    packed = None

    @property
    def name(self) -> str:
        return self.mapped.name

    @property
    def shape(self) -> TensorShape:
        return self.mapped.shape[0] + self.extra, *self.mapped.shape[1:]

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return self.mapped.sources

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        yield from self.mapped.chunks(sources, type)
        row = np.zeros((1, self.shape[1]), np.float32)
        for _ in range(self.extra):
            yield quantize(row, type)


class Constant(Struct, frozen=True):
    """Values derived from the configuration, written in float32."""

    name: str
    values: NDArray[np.float32]

    packed = QuantType.F32

    @property
    def shape(self) -> TensorShape:
        return self.values.shape

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return {}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        yield quantize(self.values, type)


class Integers(Struct, frozen=True):
    """A tensor of integers, written in int32. source: its name in the checkpoint."""

    name: str
    shape: TensorShape
    source: str

    packed = QuantType.I32

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return {self.source: self.shape}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        source = sources[self.source]
        if not source.is_integer:
            raise ModelError(f"{source.path}: tensor {source.name!r} holds {source.dtype}, not whole numbers")
        largest = np.iinfo(np.int32).max
        if source.data.size and not -largest <= source.data.min() <= source.data.max() <= largest:
            raise ModelError(f"{source.path}: tensor {source.name!r} holds numbers beyond int32")
        yield np.ascontiguousarray(source.data, np.int32).reshape(-1).view(np.uint8)


class PackedExperts(Struct, frozen=True):
    """Expert matrices that the checkpoint already stores in MXFP4. Their bits are only rearranged.

    GGUF stores the scale and the elements together in one block, with elements j and j + 16 in byte j.

    blocks: the tensor of elements, (experts, rows, columns / 32, 16) bytes. Each byte has two adjacent
    elements, the first in its low half.
    scales: the tensor of exponents, (experts, rows, columns / 32).
    rows: the rows to take, because the rows of gate and up may alternate.
    """

    name: str
    shape: TensorShape
    blocks: str
    scales: str
    num_source_rows: int
    rows: slice

    packed = QuantType.MXFP4

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        experts, _, columns = self.shape
        groups = (experts, self.num_source_rows, columns // 32)
        return {self.blocks: (*groups, 16), self.scales: groups}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        for name in (self.blocks, self.scales):
            if sources[name].dtype != "U8":
                raise ModelError(f"{sources[name].path}: tensor {name!r} holds {sources[name].dtype}, not U8")
        pairs = zip(sources[self.blocks].data, sources[self.scales].data, strict=True)
        return (_repacked(blocks[self.rows], scales[self.rows]) for blocks, scales in pairs)


def _repacked(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes of GGUF's blocks for elements (rows, groups, 16) and scales (rows, groups)."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 2, 16)
    packed = codes[..., 0, :] | codes[..., 1, :] << 4
    return np.concatenate([scales[..., None], packed], axis=-1).reshape(-1)
