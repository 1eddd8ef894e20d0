"""Reading of image files into Gemma 3's patches: the image is stretched to a square.

Pan and scan, which adds crops of wide pictures as further images, is off, as in the published processor.
"""

from __future__ import annotations

from chaski.image import Normal, Values, open_image, patches, squared
from chaski.model.projectors.vit import square_order

__all__ = ["patches_by_squares", "read_square"]


def read_square(data: bytes, size: int, normal: Normal) -> Values:
    """Read an image file into pixels (size, size, 3). Raises ImageError."""
    return squared(open_image(data), size, "bilinear", normal)


def patches_by_squares(pixels: Values, patch_size: int, square: int) -> Values:
    """Split pixels (size, size, 3) into patches (n, 3 · patch_size²) in the order of `square_order`."""
    cut = patches(pixels, patch_size)
    return cut.reshape(len(cut) ** 2, -1)[square_order(len(cut), square)]
