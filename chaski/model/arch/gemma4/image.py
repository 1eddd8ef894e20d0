"""Reading of image files into Gemma 4's patches: near the original proportions, up to the encoder's limit."""

from __future__ import annotations

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import Normal, Patches, filled, in_squares, open_image
from chaski.model.multimodal import Layout

__all__ = ["FROM_0_TO_1", "image_layout", "num_positions", "read_patches", "row_budget", "sees_both_ways"]

FROM_0_TO_1 = Normal((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_POSITIONS = "v.position_embd.weight"
_ROWS = 280  # the most rows per image when the file does not define it
_CAUSAL = (1536, 2560)  # the hidden sizes of E2B and E4B


def read_patches(data: bytes, patch: int, square: int, max_rows: int, normal: Normal) -> Patches:
    """Read an image file into patches, grouped by squares of `square` by `square` patches."""
    return in_squares(filled(open_image(data), patch * square, max_rows, normal), patch, square)


def row_budget(file: GGUFFile, side: int) -> int:
    """Return the most rows that an image makes. A row stands for a square of `side` pixels."""
    pixels = file.get(f"{file.architecture}.vision.image_max_pixels", int, _ROWS * side**2)
    return max(1, pixels // side**2)


def num_positions(file: GGUFFile, needed: int) -> int:
    """Return the number of columns (and of rows) with an embedding, which is at least `needed`."""
    info = file.tensors.get(_POSITIONS)
    if info is None or len(info.shape) != 3:
        raise ModelError(f"{file.path}: tensor {_POSITIONS} (2, positions, size) is missing")
    if info.shape[1] < needed:
        raise ModelError(
            f"{file.path}: an image may have {needed} columns of patches, but {_POSITIONS} contains only "
            f"{info.shape[1]} embeddings"
        )
    return info.shape[1]


def sees_both_ways(file: GGUFFile, row_size: int) -> bool:
    """Return whether the rows of an image see each other in the text model, as in all but the smallest.

    Files from other converters do not store this; llama.cpp decides by the size of a row.
    """
    return file.get(f"{file.architecture}.vision.is_bidirectional", bool, row_size not in _CAUSAL)


def image_layout(num_rows: int) -> Layout:
    return "<|image>", num_rows, "<image|>"
