"""Image preprocessing: files become pixels, and pixels become the inputs of encoders, as published for each
model.

Pixels are uint8 arrays (height, width, 3), RGB. Sizes are (height, width).
"""

from chaski.image.files import MAX_BYTES, MAX_PIXELS, Pixels, image_format, open_image
from chaski.image.grids import SpareTiles, in_grid, in_rounded_tiles, in_spare_tiles
from chaski.image.processors import (
    CLIP,
    HALF,
    IMAGENET,
    Normal,
    PatchLimits,
    centered,
    filled,
    in_aspect_tiles,
    in_bounds,
    in_patches,
    in_slices,
    in_split_tiles,
    in_tiles,
    most_padded_squares,
    on_padded_squares,
    on_square,
    squared,
    stretched_tiles,
    video_size,
)
from chaski.image.squares import Patches, in_squares
from chaski.image.transforms import Values, normalize, patches
from chaski.image.videos import PACKED, Frames, Sampling, as_video, is_video, read_video

__all__ = [
    "CLIP",
    "HALF",
    "IMAGENET",
    "MAX_BYTES",
    "MAX_PIXELS",
    "PACKED",
    "Frames",
    "Normal",
    "PatchLimits",
    "Patches",
    "Pixels",
    "Sampling",
    "SpareTiles",
    "Values",
    "as_video",
    "centered",
    "filled",
    "image_format",
    "in_aspect_tiles",
    "in_bounds",
    "in_grid",
    "in_patches",
    "in_rounded_tiles",
    "in_slices",
    "in_spare_tiles",
    "in_split_tiles",
    "in_squares",
    "in_tiles",
    "is_video",
    "most_padded_squares",
    "normalize",
    "on_padded_squares",
    "on_square",
    "open_image",
    "patches",
    "read_video",
    "squared",
    "stretched_tiles",
    "video_size",
]
