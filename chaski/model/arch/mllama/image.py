"""Images in the form that the vision model takes: tiles in one of a few grids, padded to the largest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.image import CLIP, Values, in_tiles, open_image, patches
from chaski.model.config import patches_a_side, refuse
from chaski.model.multimodal import Image

__all__ = ["Tiling", "read_image"]

_TYPES = {"i": np.int32, "f": np.float32}
_MULTIPLE = 8  # the rows of a tile are padded to a multiple of this


class Tiling(Struct, frozen=True):
    """Up to `max_tiles` tiles of `edge` pixels, in patches of `patch_size`.

    The computation is the same for every image: all tiles take part, used or not.
    """

    edge: int
    patch_size: int
    max_tiles: int

    @classmethod
    def read(cls, file: GGUFFile) -> Tiling:
        refuse(file, "mllama.vision.num_channels", allowed=3, what="pictures with another number of channels")
        keys = ("image_size", "patch_size", "max_num_tiles")
        found = cls(*(file.get(f"mllama.vision.{key}", int) for key in keys))
        patches_a_side(file, found.edge, found.patch_size)
        return found

    @property
    def grids(self) -> list[tuple[int, int]]:
        """List (rows, columns) of the grids in the order in which the model numbers them from 1."""
        sides = range(1, self.max_tiles + 1)
        return [(rows, columns) for rows in sides for columns in sides if rows * columns <= self.max_tiles]

    @property
    def positions(self) -> int:
        """Return the rows of a tile: one for its class, and one for each patch."""
        return (self.edge // self.patch_size) ** 2 + 1

    @property
    def tile_rows(self) -> int:
        return -(-self.positions // _MULTIPLE) * _MULTIPLE

    @property
    def max_patches(self) -> int:
        return self.max_tiles * self.tile_rows

    @property
    def max_rows(self) -> int:
        return self.max_tiles * self.positions


def read_image(data: bytes, tiling: Tiling, token: int) -> Image:
    """Read an image file into the inputs of the vision model. Raises the errors of `open_image`.

    `token` stands for the image in the text. Used rows come first, tile by tile; then come empty tiles and
    the padding of tiles.
    """
    tiles, grid = in_tiles(open_image(data), tiling.edge, tiling.max_tiles, CLIP)
    tile, place = np.divmod(np.arange(tiling.max_patches), tiling.tile_rows)
    is_filling = place >= tiling.positions
    is_unused = is_filling | (tile >= len(tiles))
    order = np.argsort(is_unused, kind="stable")
    first = (1 + tiling.grids.index(grid)) * tiling.max_tiles
    position = np.where(is_filling, 0, place)
    by_row = {
        "pixels": _pixels(tiles, tiling),
        "tile": first + tile,
        "position": position,
        "tile_position": (first + tile) * tiling.positions + position,
        "is_class": _column(place == 0),
        "is_patch": _column((place > 0) & ~is_filling),
        "is_position": _column(~is_filling),
        "spans": _spans(is_unused),
    }
    arrays = {name: array[order].astype(_TYPES[array.dtype.kind]) for name, array in by_row.items()}
    num_rows = len(tiles) * tiling.positions
    return Image(arrays | {"kept": np.arange(num_rows, dtype=np.int32)}, num_rows, (1,), token)


def _pixels(tiles: Values, tiling: Tiling) -> npt.NDArray[np.float32]:
    cut = [patches(tile, tiling.patch_size).reshape(tiling.positions - 1, -1) for tile in tiles]
    pixels = np.zeros((tiling.max_tiles, tiling.tile_rows, cut[0].shape[1]), np.float32)
    pixels[: len(cut), 1 : tiling.positions] = cut
    return pixels.reshape(tiling.max_patches, -1)


def _column(condition: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    return condition[:, None].astype(np.float32)


def _spans(is_unused: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the spans: used rows see all rows, unused rows only the used ones, as in Meta's code."""
    ends = np.where(is_unused, np.sum(~is_unused), len(is_unused))
    return np.stack([np.zeros_like(ends), ends, np.zeros_like(ends)], axis=1)
