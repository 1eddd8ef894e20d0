"""What a model is run on: the vocabulary that model, cache and runner share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaski.ml import ops
from chaski.ml.graph import Tensor

__all__ = ["Attended", "Batch", "ImageRows", "Inputs"]


@dataclass(frozen=True, slots=True)
class Attended:
    """An image of `num_rows` rows that layers attend to, and where the token is that stands for it."""

    sequence: int
    position: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one or more sequences that are computed together; all arrays are int32.

    tokens, positions, sequences have one entry a token. `outputs` lists the indices of the tokens whose
    logits are wanted. Tokens of one sequence stand in ascending order of position.

    `ends` has for each token the position before which it sees its sequence. It is given for tokens that see
    beyond themselves, as those of an image see all of it, and never reaches beyond the batch; None is each up
    to itself.

    `rows` (n, size) float32 are what an encoder made of images; they stand in place of the embeddings of the
    tokens whose indices `places` (n,) lists. None is no images.

    `attended` are the images that come with the batch, for layers that attend to images only, at most one of
    each sequence; tokens of it before the image, if there are any, are its first. `encoded` (n, size) float32
    are the rows of all of them, one image after the other.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32] | None = None
    rows: npt.NDArray[np.float32] | None = None
    places: npt.NDArray[np.int32] | None = None
    attended: Sequence[Attended] = ()
    encoded: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class ImageRows:
    """`rows` (n, size) of images and the `places` (n,) of the tokens that they stand for; n is 0 for text."""

    rows: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """The same as symbols, while a model records its graph. `outputs` indexes the rows to keep at the end.

    `images` is there for models that see.
    """

    tokens: Tensor
    positions: Tensor
    outputs: Tensor
    images: ImageRows | None = None

    def with_images(self, x: Tensor) -> Tensor:
        """The embeddings `x` (tokens, size), but the rows of images at their places."""
        return x if self.images is None else ops.scatter(x, self.images.rows, self.images.places)
