"""Images as models take them, and the interface of an encoder of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from chaski.kvcache import KVShape, LayerCache
from chaski.ml.graph import Dim, Graph, Tensor

__all__ = ["EncoderShape", "Image", "Layout", "MultimodalProcessor"]

Layout: TypeAlias = tuple["str | int", ...]
"""Parts of an image in a prompt: texts, control tokens spelled out, and numbers of rows."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """An image as an encoder takes it: `arrays` are the inputs that `encode_multimodal` declares, by name.

    `num_rows` is how many rows the encoder makes of it. They stand in place of as many embeddings; or, where
    there is a `token`, that token stands for the image, and layers with an encoder cache attend to its rows:
    then the layout has one row. Images with the same content have the same `digest`,
    and no others.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    num_rows: int
    layout: Layout
    token: int | None = None
    digest: int = field(init=False)

    def __post_init__(self) -> None:
        content = blake2b(repr((self.num_rows, self.layout)).encode(), digest_size=_DIGEST_BYTES)
        for name, array in sorted(self.arrays.items()):
            content.update(f"{name} {array.dtype} {array.shape}".encode())
            content.update(array.tobytes())
        object.__setattr__(self, "digest", int.from_bytes(content.digest()))

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Sizes for which an encoder reserves memory.

    max_patches, max_rows  what goes in and what comes out of it for the largest image
    row_size               elements of a row that comes out: as many as an embedding of the text model has
    heads                  its attention
    """

    max_patches: int
    max_rows: int
    row_size: int
    heads: KVShape


class MultimodalProcessor(Protocol):
    """The attribute `vision` of a model that sees: an encoder of images, its weights being the model's."""

    @property
    def shape(self) -> EncoderShape: ...

    @property
    def is_bidirectional(self) -> bool:
        """True where the rows of an image see each other in the text model, not only those before them."""

    def read_image(self, data: bytes) -> Image:
        """A file of an image -> what the encoder takes. Raises FormatError or UnsupportedError."""

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        """Record the encoder of one image, whose inputs it declares itself -> (rows, row_size).

        Each input has as many rows as its array in `Image.arrays`; those that attend have `patches`. All
        layers share `history`, in which every patch sees all of its image.
        """
