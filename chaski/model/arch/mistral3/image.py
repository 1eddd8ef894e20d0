"""Reading of image files into Pixtral's patches: in the original proportions, grouped by squares."""

from __future__ import annotations

from chaski.image import Normal, Patches, in_patches, in_squares, open_image

__all__ = ["read_patches"]


def read_patches(data: bytes, longest_edge: int, patch: int, square: int, normal: Normal) -> Patches:
    """Read an image file into patches, grouped by squares of `square` by `square` patches."""
    return in_squares(in_patches(open_image(data), longest_edge, patch * square, normal), patch, square)
