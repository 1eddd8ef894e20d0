"""The two interfaces of a key/value cache, and what a layer stores in it.

A layer sees `LayerCache`: store this batch, get the history. The runner sees `Cache`: sequences that start,
share, shrink and end. A layer is given its own cache; there is no current layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt
from msgspec import Struct

from chaski.errors import UnsupportedError
from chaski.kvcache.batch import Batch
from chaski.kvcache.extents import Extent, Span
from chaski.ml import ops
from chaski.ml.backend import Backend, CellRows
from chaski.ml.graph import AnyMask, Dim, DType, Graph, KVBuffer, KVRole, Rope, Tensor

__all__ = [
    *("KV_TYPES", "Cache", "KVShape", "KVTypes", "LayerCache", "LeafCache", "kv_buffers"),
    "update_buffers",
]

KV_TYPES = tuple(dtype.value for dtype in DType if dtype is not DType.I32)
"""The names of the types that keys and values can have."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """The key/value heads of one layer, their sizes, and how positions are in the keys.

    `rope` rotated the keys. It is None where keys cannot be moved to another position, and has no frequencies
    where keys do not depend on it. With `values_in_keys`, the last `value_size` elements of a key are its
    value (latent attention), and only keys are stored.
    """

    heads: int
    key_size: int
    value_size: int
    rope: Rope | None = field(default=None, compare=False)
    values_in_keys: bool = False

    def roles(self) -> Sequence[tuple[KVRole, int]]:
        """Return what the buffers of a layer hold, and the size of a head in each of them."""
        keys = (KVRole.KEYS, self.key_size)
        return [keys] if self.values_in_keys else [keys, (KVRole.VALUES, self.value_size)]


class KVTypes(Struct, frozen=True):
    """The element types that keys and values are stored in; they may differ."""

    keys: DType
    values: DType

    def of(self, role: KVRole) -> DType:
        """Return the type of keys or of values."""
        return self.keys if role is KVRole.KEYS else self.values

    @classmethod
    def parse(cls, name: str) -> KVTypes:
        """`name` is one type for both, or `keys:values`. Raises UnsupportedError for others."""
        keys, colon, values = name.partition(":")
        if not {keys, values if colon else keys} <= set(KV_TYPES):
            raise UnsupportedError(
                f"keys and values of type {name!r} are not supported; supported: {', '.join(KV_TYPES)}, "
                "or two of them as keys:values"
            )
        return cls(DType(keys), DType(values or keys))


def kv_buffers(
    backend: Backend,
    shapes: Sequence[KVShape],
    cells: int,
    types: KVTypes,
    layers: Sequence[int] | None = None,
) -> list[list[KVBuffer]]:
    """Storage of `cells` rows for each layer: keys, and values where they are not in the keys.

    `layers` are the numbers of the layers.
    """
    return [
        [
            backend.kv_buffer(role, cells, shape.heads, size, types.of(role), layer)
            for role, size in shape.roles()
        ]
        for layer, shape in zip(layers or range(len(shapes)), shapes, strict=True)
    ]


def update_buffers(
    buffers: Sequence[KVBuffer], value_size: int, cells: Tensor, k: Tensor, v: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Store k and v in `cells` of the buffers of a layer -> its keys and its values, for `ops.attention`."""
    given = [k] if v is None else [k, v]
    keys, *values = [ops.store(x, cells, buffer) for x, buffer in zip(given, buffers, strict=True)]
    return keys, values[0] if values else ops.stored(k.graph, buffers[0], value_size)


class LayerCache(Protocol):
    """The interface of a cache for one attention layer, while its graph is recorded."""

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        """Store k and v (n, kv_heads, size) of this batch; returns what `ops.attention` reads.

        v is None where the values are in the keys, see `KVShape`.
        That is all keys, all values (cells, kv_heads, size), and which of them each token sees.
        """


class Cache(Protocol):
    """A cache as the runner sees it. Sequence ids are 0, 1, … below the number that it was made for."""

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[Any]:
        """Declare the cache's inputs in `graph`, with `prefix` before their names -> one interface per layer.

        It is a `LayerCache` for a layer that attends, and a `RecurrentLayer` for a recurrent one.
        """

    @property
    def num_droppable(self) -> int:
        """Return how many of the last tokens of a sequence can be removed without losing others."""

    @property
    def overwrites(self) -> bool:
        """True if later tokens of a sequence may be stored over its own earlier ones."""

    def length(self, sequence: int) -> int:
        """The number of tokens of `sequence`, which is the position of the next one."""

    def start_forward(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """Make room for the batch; returns the inputs that `record` declared, without prefix.

        Raises CacheFullError, and changes nothing, when there are not enough free cells.
        """

    def undo_forward(self, batch: Batch) -> None:
        """Take back `start_forward` of this batch: the last call so far, and none of it was computed."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make `target` exactly the first `length` tokens of `source`. Shares storage, copies nothing.

        If a prefix cannot be shared, `target` gets no more than `shareable(source, length)`.
        """

    def shareable(self, sequence: int, position: int) -> int:
        """Return how many tokens of `sequence`, at most `position`, another can share and continue from."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """True if the next token of `sequence` may be written at `position`: all that it sees is stored."""

    def resumable(self, sequence: int, position: int) -> int:
        """The number of tokens of `sequence`, at most `position`, that can stay for others to follow them.

        It is the highest position up to `position` that `can_resume` allows.
        """

    def remove(self, sequence: int, begin: int, end: int | None = None, distance: int | None = None) -> None:
        """Drop the tokens at positions begin to end (None: to the end of the sequence).

        Tokens after a removed middle move down, and their keys are rotated back by `distance`, by default the
        number of dropped tokens.

        Dropping a tail also drops the tokens before it that cannot be resumed, so that
        `resumable(sequence, begin)` tokens stay. Raises NotSupportedError, and changes nothing, where it
        cannot; `remove(sequence, 0)` always works. Tokens that move must not be shared: see `first_shared`.
        """

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        """Raise the NotSupportedError that `remove` would raise; change nothing.

        Whether a middle can be removed depends on the positions alone: not on what other sequences share, and
        not on how much more than the visible tokens happens to be stored.
        """

    def first_shared(self, sequence: int, begin: int) -> int:
        """The first position of shared storage among those that `remove` of a middle to `begin` writes to.

        It is among those from `begin` on, or in the same page before it; the length where there is none.
        """

    def forget(self, sequences: Iterable[int]) -> None:
        """Empty these sequences, in whatever state a failed operation left them.

        Owners and free storage are found again from the lists of the other sequences.
        """

    @property
    def leaves(self) -> Sequence[LeafCache]:
        """Its component caches, one for each kind of layers; itself if there is only one."""

    def close(self) -> None:
        """Give the storage back."""


class LeafCache(Cache, Protocol):
    """A cache of layers of one kind, whose content can be kept elsewhere and restored exactly."""

    is_state: bool
    """True if a cell is a state of all tokens before it, not the row of one token."""

    @property
    def rows(self) -> CellRows:
        """Access to what its cells hold."""

    @property
    def kind(self) -> str:
        """The tokens that its layers keep, for people."""

    @property
    def num_cells(self) -> int:
        """Cells of each layer."""

    def held(self, sequence: int, begin: int, end: int) -> Sequence[Extent]:
        """Return the content of the tokens of `sequence` at positions `begin` to `end`, and their cells.

        For states, it returns the states of these tokens, in ascending order.
        """

    def restorable(self, spans: Sequence[Span], start: int, length: int) -> int:
        """Return the largest number of tokens, up to `length`, that a sequence can be restored to.

        `spans`, in ascending order, can be restored, and the sequence still holds its first `start` tokens.
        The answer is `start` where nothing helps.
        """

    def adopt(self, sequence: int, length: int, first_image: int | None = None) -> Extent | None:
        """Make room for restored content: `sequence` has `length` tokens from now on, more than before.

        Where an image is among the new ones that layers attend to, the last of these comes with the next
        batch of the sequence, and `first_image` is the position of the first one of all its tokens.
        Returns what has to be written before anything else is computed; None for nothing.
        """
