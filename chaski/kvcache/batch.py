"""A batch: the tokens that are computed together, as arrays that cache, model and runner share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

__all__ = ["AttendedImage", "Batch", "BatchAdapters"]


class AttendedImage(Struct, frozen=True):
    """An image for layers that attend to images: it has `num_rows` rows, and `position` is its token's.

    `first` is the position of the first such image of the sequence.
    """

    sequence: int
    position: int
    num_rows: int
    first: int


class BatchAdapters(Struct, frozen=True):
    """The LoRA adapters of a batch: `lists` (n,) has the number of each token's list, or -1.

    `uses` (m, 3) are the lists, one after the other: number of the list, slot, and bits of a float32 scale.
    """

    lists: npt.NDArray[np.int32]
    uses: npt.NDArray[np.int32]


class Batch(Struct, frozen=True):
    """Tokens of one or more sequences that are computed together.

    tokens, positions, sequences (n,)  what each token is, and where it stands; the tokens of a sequence come
                                       in ascending order of position
    outputs   indices of the tokens whose logits are wanted
    ends      the position before which each token sees its sequence, for tokens that see beyond themselves,
              as those of an image do; never beyond the batch. None: each token sees up to itself
    rows      (m, size) rows that an encoder made of images. They replace the embeddings of the tokens whose
              indices are `places` (m,). None: no images
    attended  images that come with the batch, for layers that attend to images only: at most one of each
              sequence, after no token that attends to an earlier one. Its token may be in a batch before
    types     (n,) 1 for tokens of the second of two texts, for models that distinguish them
    encoded   (m, size) rows of all of `attended`, one image after the other
    coordinates (n, 3)  what turns the queries and keys of each token, see `chaski.chat.image_rows`. No mask
              knows of them. None: all three are the token's position
    adapters  those that the tokens are computed with. None: none
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32] | None = None
    rows: npt.NDArray[np.float32] | None = None
    places: npt.NDArray[np.int32] | None = None
    attended: Sequence[AttendedImage] = ()
    encoded: npt.NDArray[np.float32] | None = None
    types: npt.NDArray[np.int32] | None = None
    coordinates: npt.NDArray[np.int32] | None = None
    adapters: BatchAdapters | None = None
