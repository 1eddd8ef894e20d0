"""Images in the form that models take, and the interface of image encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.kvcache import KVShape, LayerCache
from chaski.ml.graph import Dim, Graph, Tensor

__all__ = [
    "IMAGE_NUMBER",
    "EncoderShape",
    "Encoding",
    "FurtherAttention",
    "Image",
    "Layout",
    "LimitedByContext",
    "MultimodalProcessor",
    "PatchHistory",
    "SeesVideos",
    "TextEncoder",
    "Tile",
]

Layout: TypeAlias = tuple["str | int", ...]
"""The parts of an image in a prompt: text, control tokens spelled out, and numbers of rows."""

IMAGE_NUMBER = "\N{REPLACEMENT CHARACTER}"
"""A placeholder in the text of a layout for the image's index in its prompt, from 0."""

_DIGEST_BYTES = 16

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


class Tile(Struct, frozen=True, eq=False):
    """A separately encoded part of an image: the inputs of the encoder, and the number of rows it makes."""

    arrays: Arrays
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """An image in the form that an encoder takes.

    arrays    the inputs that `encode_multimodal` declares, by name; those of the first tile if there are
              several
    num_rows  the number of rows that the encoder makes of the image, summed over all tiles. Each row replaces
              one embedding, unless there is a `token`
    token     the token that stands for the image in models whose cross-attention layers read its rows from an
              encoder cache; the layout then contains one row
    further   the tiles after the first
    order     the tiles' row numbers in the order of the prompt, each at least once; by default tile by tile
    grid      the number of rows and columns if the image's rows form a grid, line by line, or those of each
              part of the layout form one; models with several coordinates per token use it
    is_numbered  the grid begins after a row and ends before another. Its rows have four coordinates: their
              position, column and row, and the number of the image in its prompt
    steps     instead of a grid, for models with coordinates: by how much all three coordinates of each row
              exceed those of the first row
    digest    the same for images with the same content, and only for those
    """

    arrays: Arrays
    num_rows: int
    layout: Layout
    token: int | None = None
    further: tuple[Tile, ...] = ()
    order: npt.NDArray[np.int32] | None = None
    grid: tuple[int, int] | None = None
    is_numbered: bool = False
    steps: npt.NDArray[np.int32] | None = None
    digest: int = field(init=False)

    @classmethod
    def of_tiles(
        cls,
        tiles: Sequence[Tile],
        layout: Layout,
        order: npt.NDArray[np.int32] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Image:
        """Return an image whose tiles are encoded one by one."""
        num_rows = sum(tile.num_rows for tile in tiles) if order is None else len(order)
        return cls(tiles[0].arrays, num_rows, layout, further=tuple(tiles[1:]), order=order, grid=grid)

    def __post_init__(self) -> None:
        form = repr((self.num_rows, self.layout, self.grid, self.is_numbered))
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
        """Return the parts that are encoded one by one; most images have one."""
        encoded = self.num_rows if self.order is None else int(self.order.max()) + 1
        first = encoded - sum(tile.num_rows for tile in self.further)
        return Tile(self.arrays, first), *self.further

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of its arrays."""
        return sum(array.nbytes for tile in self.tiles for array in tile.arrays.values())


class FurtherAttention(Struct, frozen=True):
    """Attention among other states than those of patches, of which a tile has up to `max_cells`.

    `Image.arrays` contains "NAME spans" (n, 2): the first state that each of n states sees, and the one after
    the last.
    """

    name: str
    max_cells: int
    heads: KVShape


class EncoderShape(Struct, frozen=True):
    """Sizes for which an encoder reserves memory.

    max_patches, max_rows  the most input patches and output rows of a tile
    row_size               elements of an output row: as many as an embedding of the text model has, or
                           several times as many, see `Inputs.with_deep_images`
    heads                  the heads of its attention
    max_tiles              enough of the largest tile to cover the rows of the largest image
    pool                   the attention after the layers in which rows look at patches; None without one
    pool_queries           how many queries look at patches in that attention, if they are no rows
    further                attention of other kinds
    has_grid               images have a `grid`, and the text model rotates tokens by coordinates
    num_coordinates        the coordinates of a token: time, row and column, or those of a numbered grid
    max_at_once            the most patches that are computed at once; larger tiles are computed in pieces
    """

    max_patches: int
    max_rows: int
    row_size: int
    heads: KVShape
    max_tiles: int = 1
    pool: KVShape | None = None
    has_grid: bool = False
    num_coordinates: int = 3
    max_at_once: int = 1 << 30
    pool_queries: int = 0
    further: tuple[FurtherAttention, ...] = ()

    def queries_of_pool(self, rows: Dim) -> Dim:
        """Return the dimension of what looks at patches in the attention `pool`."""
        return Dim("pool_queries", self.pool_queries) if self.pool_queries else rows


class PatchHistory(LayerCache, Protocol):
    """The history of an encoder: all patches of a tile."""

    def pool(self) -> LayerCache:
        """Return the history of the attention in which the rows look at the patches: `EncoderShape.pool`."""

    def further(self, name: str) -> LayerCache:
        """Return the history of an attention of `EncoderShape.further`. Its states have the Dim `name`."""

    def windows(self) -> LayerCache:
        """Return the same history, restricted so that each patch sees only its window.

        `Image.arrays` then contains `windows`: each patch's first visible patch and the one after the last.
        """


class Encoding(Protocol):
    """An encoder whose weights belong to the model that reads its rows."""

    @property
    def shape(self) -> EncoderShape: ...

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        """Record the encoder of one tile, and declare its inputs; return (rows, row_size).

        Each input has as many rows as its array in `Image.arrays`; those that attend have `patches` rows. All
        layers share `history`, in which every patch sees all of its tile.
        """


class TextEncoder(Encoding, Protocol):
    """The attribute `text_encoder` of a model with an encoder and a decoder, such as T5.

    The encoder reads the whole prompt. The decoder begins with one token, which stands for the prompt as it
    stands for an image in models whose cross-attention layers read rows of images.
    """

    def read_text(self, token_ids: Sequence[int]) -> Image:
        """Return the encoder's inputs for a prompt, with the first token of the decoder."""


class MultimodalProcessor(Encoding, Protocol):
    """The attribute `vision` of a model that sees: an image encoder."""

    @property
    def is_bidirectional(self) -> bool:
        """Return whether image rows see each other in the text model, not only earlier rows."""

    def read_image(self, data: bytes) -> Image:
        """Read an image file into the encoder's inputs. Raises FormatError or UnsupportedError."""


@runtime_checkable
class LimitedByContext(Protocol):
    """An image encoder that scales images down to what a context holds."""

    def limit_to(self, context: int) -> None:
        """Set the tokens of the context. `shape` depends on them, and is read afterwards."""


@runtime_checkable
class SeesVideos(Protocol):
    """An image encoder that also reads videos."""

    def read_video(self, data: bytes) -> Image:
        """Read a video file or the result of `chaski.image.as_video`. Raises ImageError."""
