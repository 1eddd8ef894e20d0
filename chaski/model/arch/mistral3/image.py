"""Pixtral's patches of an image file: in its own proportions, square by square."""

from __future__ import annotations

from chaski.image import Normal, Patches, in_patches, in_squares, open_image

__all__ = ["read_patches"]


def read_patches(data: bytes, longest_edge: int, patch: int, square: int, normal: Normal) -> Patches:
    """An image file -> patches, those of a square of `square` by `square` one after the other."""
    return in_squares(in_patches(open_image(data), longest_edge, patch * square, normal), patch, square)
