"""The published preprocessing of each encoder, one function each. Models define the sizes.

tests/image compares every number with Hugging Face's processors on Pillow.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from msgspec import Struct

from chaski.errors import ImageError
from chaski.image.files import Pixels
from chaski.image.transforms import Filter, Values, center_crop, normalize, pad, resize, tiles

__all__ = [
    "CLIP",
    "HALF",
    "IMAGENET",
    "Normal",
    "PatchLimits",
    "centered",
    "filled",
    "in_aspect_tiles",
    "in_bounds",
    "in_patches",
    "in_slices",
    "in_split_tiles",
    "in_tiles",
    "most_padded_squares",
    "on_padded_squares",
    "on_square",
    "squared",
    "stretched_tiles",
    "video_size",
]

Size = tuple[int, int]
Triple = tuple[float, float, float]

_MOST_UNEQUAL = 200


class Normal(Struct, frozen=True):
    """Mean and deviation of each channel, for values from 0 to 1; they become 0 and 1."""

    mean: Triple
    std: Triple

    @property
    def color(self) -> tuple[int, int, int]:
        """The mean as a color."""
        red, green, blue = (int(each * 255) for each in self.mean)
        return red, green, blue


class PatchLimits(Struct, frozen=True):
    """The most whole patches of a picture and of each of its sides, and the most squares that it may need."""

    count: int
    side: int
    squares: int


HALF = Normal((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = Normal((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = Normal((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def squared(pixels: Pixels, edge: int, filter: Filter, normal: Normal) -> Values:
    """Resize the whole picture to a square, whatever its proportions, as SigLIP and Gemma 3 do."""
    return normalize(resize(pixels, (edge, edge), filter), normal.mean, normal.std)


def centered(pixels: Pixels, edge: int, normal: Normal, is_padded: bool = False) -> Values:
    """Resize the shorter side to `edge` and cut out the middle square, as CLIP and LLaVA do.

    With `is_padded` the picture is first made square with bars in the mean color, so that no part is lost.
    """
    if is_padded:
        pixels = _padded_square(pixels, normal.color)
    height, width = pixels.shape[:2]
    size = (int(edge * height / width), edge) if width <= height else (edge, int(edge * width / height))
    square = center_crop(resize(pixels, size, "bicubic"), (edge, edge))
    return normalize(square, normal.mean, normal.std)


def in_patches(pixels: Pixels, longest_edge: int, patch: int, normal: Normal) -> Values:
    """Shrink in proportion to at most `longest_edge`, then round up to whole patches, as Pixtral does. The
    number of patches is not limited otherwise.
    """
    height, width = pixels.shape[:2]
    ratio = max(height / longest_edge, width / longest_edge)
    if ratio > 1:
        height, width = max(int(height / ratio), 1), max(int(width / ratio), 1)
    size = (-(-height // patch) * patch, -(-width // patch) * patch)
    return normalize(resize(pixels, size, "bicubic"), normal.mean, normal.std)


def filled(pixels: Pixels, square: int, max_squares: int, normal: Normal) -> Values:
    """Resize to as many squares of `square` pixels as allowed, in about the same proportions, as Gemma 4
    does.

    Small pictures are enlarged. The narrowest pictures get one row or column of squares.
    """
    height, width = pixels.shape[:2]
    scale = math.sqrt(max_squares * square**2 / (height * width))
    rows, columns = math.floor(scale * height / square), math.floor(scale * width / square)
    if rows == 0:
        rows, columns = 1, min(width // height, max_squares)
    elif columns == 0:
        rows, columns = min(height // width, max_squares), 1
    return normalize(resize(pixels, (rows * square, columns * square), "bicubic"), normal.mean, normal.std)


def in_bounds(
    pixels: Pixels,
    square: int,
    smallest: int,
    largest: int,
    normal: Normal,
    size: Size | None = None,
) -> Values:
    """Resize to whole squares, nearly in proportion, with `smallest` to `largest` pixels in total, as Qwen
    does.

    `size` is the height and width to begin with, by default those of the picture. Raises ImageError if one is
    more than 200 times the other, as other engines do.
    """
    height, width = size or pixels.shape[:2]
    if max(height, width) > _MOST_UNEQUAL * min(height, width):
        raise ImageError(
            f"the image has {width} x {height} pixels: for this model one side must not be more than "
            f"{_MOST_UNEQUAL} times as long as the other; crop it"
        )
    size = round(height / square) * square, round(width / square) * square
    if size[0] * size[1] > largest:
        factor = math.sqrt(height * width / largest)
        size = _shrunk(height / factor, square), _shrunk(width / factor, square)
    elif size[0] * size[1] < smallest:
        factor = math.sqrt(smallest / (height * width))
        size = math.ceil(height * factor / square) * square, math.ceil(width * factor / square) * square
    return normalize(resize(pixels, size, "bicubic"), normal.mean, normal.std)


def on_padded_squares(pixels: Pixels, patch: int, square: int, limits: PatchLimits, normal: Normal) -> Values:
    """Shrink in proportion to the limits of patches, then add black below and to the right up to whole
    squares of `square` patches a side, as Kimi-VL and Kimi K2.5 do.

    The limits count whole patches before the black ones. While there are more squares than
    `limits.squares`, the picture shrinks further.
    """
    unit, count = patch * square, limits.count
    while True:
        size = _within(pixels, patch, count, limits.side)
        rows, columns = (-(-edge // unit) for edge in size)
        if rows * columns <= limits.squares:
            break
        count = min(count - 1, count * limits.squares // (rows * columns))
    fitted = pad(resize(pixels, size, "bicubic"), (rows * unit, columns * unit))
    return normalize(fitted, normal.mean, normal.std)


def most_padded_squares(square: int, count: int, side: int) -> int:
    """Return a number of squares that no picture exceeds which has `count` whole patches, `side` each way.

    A picture of y by x patches has less than (y + square) (x + square) in whole squares, and
    (y - 1) (x - 1) are at most `count`.
    """
    edges, squares = side + 2 + count // max(side - 1, 1), math.ceil(side / square)
    return min((count + (square + 1) * edges + square**2) // square**2, squares**2)


def _within(pixels: Pixels, patch: int, count: int, side: int) -> Size:
    height, width = pixels.shape[:2]
    whole = max(1.0, height // patch) * max(1.0, width // patch)
    longest = side * patch
    scale = min(1.0, math.sqrt(count / whole), longest / width, longest / height)
    shrunk = [min(max(1, int(edge * scale)), longest) for edge in (height, width)]
    return shrunk[0], shrunk[1]


def video_size(frames: int, height: int, width: int, square: int, smallest: int, largest: int) -> Size:
    """Return the size of the frames of a video in whole squares, nearly in proportion, as Qwen 3-VL does.

    All frames together have `smallest` to `largest` pixels. Raises ImageError for frames of which one side is
    more than 200 times as long as the other.
    """
    if height < square or width < square:
        scale = max(square / height, square / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) > _MOST_UNEQUAL * min(height, width):
        raise ImageError(
            f"the video has {width} x {height} pixels: for this model one side must not be more than "
            f"{_MOST_UNEQUAL} times as long as the other; crop it"
        )
    size = round(height / square) * square, round(width / square) * square
    even = round(frames / 2) * 2
    if even * size[0] * size[1] > largest:
        factor = math.sqrt(frames * height * width / largest)
        return _shrunk(height / factor, square), _shrunk(width / factor, square)
    if even * size[0] * size[1] < smallest:
        factor = math.sqrt(smallest / (frames * height * width))
        return math.ceil(height * factor / square) * square, math.ceil(width * factor / square) * square
    return size


def _shrunk(edge: float, square: int) -> int:
    return max(square, math.floor(edge / square) * square)


def in_tiles(pixels: Pixels, edge: int, max_tiles: int, normal: Normal) -> tuple[Values, Size]:
    """Fit in proportion on the best canvas of tiles, with black below or to the right, as Llama 3.2 does.

    Returns the tiles (count, edge, edge, 3), and the rows and columns of tiles.
    """
    size = pixels.shape[0], pixels.shape[1]
    rows, columns = best_grid(size, edge, max_tiles)
    canvas = (rows * edge, columns * edge)
    fitted = resize(pixels, _fit_canvas(size, canvas, edge), "bilinear")
    values = normalize(pad(fitted, canvas), normal.mean, normal.std)
    return tiles(values, rows, columns), (rows, columns)


def in_aspect_tiles(pixels: Pixels, edge: int, counts: range, normal: Normal) -> Values:
    """Stretch over the grid of `counts` tiles whose proportions are closest to the picture's, as InternVL
    does.

    Returns the tiles row by row and, if there are several, the whole picture after them (count, edge, edge,
    3).
    """
    rows, columns = likest_grid(pixels, edge, counts)
    canvas = resize(pixels, (rows * edge, columns * edge), "bicubic")
    cut = tiles(normalize(canvas, normal.mean, normal.std), rows, columns)
    if len(cut) == 1:
        return cut
    return np.concatenate([cut, squared(pixels, edge, "bicubic", normal)[None]])


def stretched_tiles(pixels: Pixels, edge: int, counts: range, normal: Normal) -> tuple[Values, Size]:
    """Stretch over the grid of `counts` tiles whose proportions are closest to the picture's, as DeepSeek-OCR
    does, unless the picture fits on one tile.

    Returns the tiles row by row (count, edge, edge, 3), and the rows and columns: (0, 0) without tiles.
    """
    if max(pixels.shape[:2]) <= edge:
        return np.zeros((0, edge, edge, 3), np.float32), (0, 0)
    rows, columns = likest_grid(pixels, edge, counts)
    canvas = resize(pixels, (rows * edge, columns * edge), "bicubic")
    return tiles(normalize(canvas, normal.mean, normal.std), rows, columns), (rows, columns)


def on_square(pixels: Pixels, edge: int, color: tuple[int, int, int]) -> Pixels:
    """Resize in proportion into the middle of a square of this color, as Pillow's `ImageOps.pad` does."""
    height, width = pixels.shape[:2]
    if width > height:
        size = max(round(height / width * edge), 1), edge
    else:
        size = edge, max(round(width / height * edge), 1)
    corner = round((edge - size[0]) * 0.5), round((edge - size[1]) * 0.5)
    return pad(resize(pixels, size, "bicubic"), (edge, edge), corner, color)


def likest_grid(pixels: Pixels, edge: int, counts: range) -> Size:
    """Return the rows and columns whose proportions are nearest to those of the picture.

    Grids are tried in the order of their number of tiles, then of columns. Among equally near ones the last
    grid that the picture fills by half wins.
    """
    height, width = pixels.shape[:2]
    sides = range(1, counts.stop)
    grids = [(rows, columns) for columns in sides for rows in sides if rows * columns in counts]
    best, least = (1, 1), np.inf
    for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / rows)
        is_filled = height * width > 0.5 * edge * edge * rows * columns
        if difference < least or (difference == least and is_filled):
            best, least = (rows, columns), difference
    return best


def in_slices(
    pixels: Pixels, edge: int, patch: int, max_slices: int, normal: Normal
) -> tuple[list[Values], Size]:
    """Resize in proportion to as many pixels as a square of `edge` contains, in whole patches, as MiniCPM-V
    does.

    Returns the whole picture and, if it is larger than that, its slices row by row after it, each with that
    many pixels; and the rows and columns of slices, (0, 0) if there are no slices.
    """
    size = pixels.shape[0], pixels.shape[1]
    grid = _slices(size, edge, max_slices)
    whole = resize(pixels, _whole_patches(size, edge, patch, is_enlarged=grid is None), "bicubic")
    found = [normalize(whole, normal.mean, normal.std)]
    if grid is None:
        return found, (0, 0)
    each = tuple(_multiple(side, count) / count for side, count in zip(size, grid, strict=True))
    height, width = _whole_patches((each[0], each[1]), edge, patch, is_enlarged=True)
    fine = resize(pixels, (height * grid[0], width * grid[1]), "bicubic")
    return found + list(tiles(normalize(fine, normal.mean, normal.std), *grid)), grid


def _slices(size: Size, edge: int, most: int) -> Size | None:
    """Return the rows and columns of slices with the nearest proportions; their number is about the number of
    `edge` squares that fit in the picture.
    """
    wanted = min(math.ceil(size[0] * size[1] / (edge * edge)), most)
    if wanted <= 1:
        return None
    counts = [count for count in (wanted - 1, wanted, wanted + 1) if 1 < count <= most]
    grids = [
        (count // columns, columns)
        for count in counts
        for columns in range(1, count + 1)
        if not count % columns
    ]
    ratio = math.log(size[1] / size[0])
    return min(grids, key=lambda grid: abs(ratio - math.log(grid[1] / grid[0])))


def _whole_patches(size: tuple[float, float], edge: int, patch: int, is_enlarged: bool) -> Size:
    """Return the size in proportion with as many pixels as a square of `edge`, each side in whole patches."""
    height, width = size
    if is_enlarged or height * width > edge * edge:
        ratio = width / height
        height = int(edge / math.sqrt(ratio))
        width = int(height * ratio)
    return _multiple(height, patch), _multiple(width, patch)


def _multiple(length: float, divisor: int) -> int:
    return max(round(length / divisor) * divisor, divisor)


def in_split_tiles(pixels: Pixels, edge: int, longest_edge: int, normal: Normal) -> tuple[Values, Size]:
    """Resize the longer side to `longest_edge`, then both sides up to whole tiles, as Idefics 3 and SmolVLM
    do.

    Returns the tiles row by row, then the whole picture as one tile, (count, edge, edge, 3), and the rows and
    columns. A picture of one tile has no tile of the whole, and (0, 0) as rows and columns.
    """
    fitted = resize(pixels, _even_size(pixels, longest_edge), "lanczos")
    height, width = fitted.shape[:2]
    ratio = width / height
    if width >= height:
        width = -(-width // edge) * edge
        height = -(-int(width / ratio) // edge) * edge
    else:
        height = -(-height // edge) * edge
        width = -(-int(height * ratio) // edge) * edge
    canvas = resize(fitted, (height, width), "lanczos")
    if (height, width) == (edge, edge):
        return normalize(canvas, normal.mean, normal.std)[None], (0, 0)
    grid = height // edge, width // edge
    cut = tiles(normalize(canvas, normal.mean, normal.std), *grid)
    whole = normalize(resize(canvas, (edge, edge), "lanczos"), normal.mean, normal.std)
    return np.concatenate([cut, whole[None]]), grid


def _even_size(pixels: Pixels, longest_edge: int) -> Size:
    """Return the size in proportion whose longer side is `longest_edge` and whose other side is even."""
    height, width = pixels.shape[:2]
    ratio = width / height
    is_wide = width >= height
    other = int(longest_edge / ratio) if is_wide else int(longest_edge * ratio)
    other = max(other + other % 2, 1)
    return (other, longest_edge) if is_wide else (longest_edge, other)


def _padded_square(pixels: Pixels, color: tuple[int, int, int]) -> Pixels:
    height, width = pixels.shape[:2]
    edge = max(height, width)
    return pad(pixels, (edge, edge), ((edge - height) // 2, (edge - width) // 2), color)


def best_grid(size: Size, edge: int, max_tiles: int) -> Size:
    """Return the rows and columns of the canvas that enlarges least or, if none enlarges, shrinks least;
    among equal ones, the smallest.
    """
    counts = range(1, max_tiles + 1)
    grids = [grid for grid in product(counts, counts) if grid[0] * grid[1] <= max_tiles]
    scales = {grid: min(grid[0] * edge / size[0], grid[1] * edge / size[1]) for grid in grids}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    best = min(enlarging) if enlarging else max(scales.values())
    return min((grid for grid in grids if scales[grid] == best), key=lambda grid: grid[0] * grid[1])


def _fit_canvas(size: Size, canvas: Size, edge: int) -> Size:
    """Return the size that keeps the proportions and fills the canvas in one direction; small pictures are
    enlarged to at most one tile.
    """
    (height, width), target = size, tuple(np.clip(size, edge, canvas).tolist())
    by_height, by_width = target[0] / height, target[1] / width
    if by_width < by_height:
        return min(max(int(height * by_width), 1), target[0]), target[1]
    return target[0], min(max(int(width * by_height), 1), target[1])
