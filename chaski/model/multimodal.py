"""Images as models take them, and the interface of an encoder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.kvcache import KVShape, LayerCache
from chaski.ml.graph import Dim, Graph, Tensor

__all__ = ["IMAGE_NUMBER", "EncoderShape", "Image", "Layout", "MultimodalProcessor", "PatchHistory", "Tile"]

Layout: TypeAlias = tuple["str | int", ...]
"""Parts of an image in a prompt: texts, control tokens spelled out, and numbers of rows."""

IMAGE_NUMBER = "\N{REPLACEMENT CHARACTER}"
"""Stands in texts of a layout for the number of the image among those of its prompt, from 0 on."""

_DIGEST_BYTES = 16

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


class Tile(Struct, frozen=True, eq=False):
    """A part of an image that is encoded by itself: the inputs of the encoder, and how many rows it makes."""

    arrays: Arrays
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """An image as an encoder takes it: `arrays` are the inputs that `encode_multimodal` declares, by name.

    `num_rows` is how many rows the encoder makes of it. They stand in place of as many embeddings; or, where
    there is a `token`, that token stands for the image, and layers with an encoder cache attend to its rows:
    then the layout has one row. An image of several tiles has the first of them in `arrays` and the others
    in `further`; `num_rows` counts the rows of all. They come tile by tile, or in `order`: the numbers of the
    tiles' rows as they stand in the prompt, each at least once. `grid` has rows and columns where the rows
    that it is made of stand in one, line after line: models with several coordinates for a token tell their
    places apart. Images with the same content have the same `digest`, and no others.
    """

    arrays: Arrays
    num_rows: int
    layout: Layout
    token: int | None = None
    further: tuple[Tile, ...] = ()
    order: npt.NDArray[np.int32] | None = None
    grid: tuple[int, int] | None = None
    digest: int = field(init=False)

    @classmethod
    def of_tiles(
        cls, tiles: Sequence[Tile], layout: Layout, order: npt.NDArray[np.int32] | None = None
    ) -> Image:
        """An image whose tiles are encoded one by one."""
        num_rows = sum(tile.num_rows for tile in tiles) if order is None else len(order)
        return cls(tiles[0].arrays, num_rows, layout, further=tuple(tiles[1:]), order=order)

    def __post_init__(self) -> None:
        form = repr((self.num_rows, self.layout, self.grid))
        content = blake2b(form.encode(), digest_size=_DIGEST_BYTES)
        for tile in self.tiles:
            for name, array in sorted(tile.arrays.items()):
                content.update(f"{name} {array.dtype} {array.shape}".encode())
                content.update(array.tobytes())
        if self.order is not None:
            content.update(self.order.tobytes())
        object.__setattr__(self, "digest", int.from_bytes(content.digest()))

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The parts that are encoded one by one; most images are one."""
        encoded = self.num_rows if self.order is None else int(self.order.max()) + 1
        first = encoded - sum(tile.num_rows for tile in self.further)
        return Tile(self.arrays, first), *self.further

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for tile in self.tiles for array in tile.arrays.values())


class EncoderShape(Struct, frozen=True):
    """Sizes for which an encoder reserves memory.

    max_patches, max_rows  what goes in and what comes out of it for the largest tile
    row_size               elements of a row that comes out: as many as an embedding of the text model has, or
                           several times as many, see `Inputs.with_deep_images`
    heads                  its attention
    max_tiles              as many of the largest tile have at least the rows of the largest image
    pool                   the attention after the layers in which rows look at patches, if there is one
    has_grid               images have a `grid`, and the text model turns tokens by coordinates
    """

    max_patches: int
    max_rows: int
    row_size: int
    heads: KVShape
    max_tiles: int = 1
    pool: KVShape | None = None
    has_grid: bool = False


class PatchHistory(LayerCache, Protocol):
    """The history of an encoder: all patches of a tile."""

    def pool(self) -> LayerCache:
        """Return the history of the attention in which the rows look at the patches: `EncoderShape.pool`."""

    def windows(self) -> LayerCache:
        """Return the same history, of which each patch sees only its window.

        `Image.arrays` has `windows` then: the first patch of each one's window and the one after the last.
        """


class MultimodalProcessor(Protocol):
    """The attribute `vision` of a model that sees: an encoder of images, its weights being the model's."""

    @property
    def shape(self) -> EncoderShape: ...

    @property
    def is_bidirectional(self) -> bool:
        """True where the rows of an image see each other in the text model, not only those before them."""

    def read_image(self, data: bytes) -> Image:
        """A file of an image -> what the encoder takes. Raises FormatError or UnsupportedError."""

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        """Record the encoder of one tile, whose inputs it declares itself -> (rows, row_size).

        Each input has as many rows as its array in `Image.arrays`; those that attend have `patches`. All
        layers share `history`, in which every patch sees all of its tile.
        """
