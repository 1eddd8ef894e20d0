"""Gemma 4's patches of an image file: about its own proportions, as many as the encoder may see."""

from __future__ import annotations

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import Normal, Patches, filled, in_squares, open_image
from chaski.model.multimodal import Layout

__all__ = ["FROM_0_TO_1", "image_layout", "num_positions", "read_patches", "row_budget", "sees_both_ways"]

FROM_0_TO_1 = Normal((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_POSITIONS = "v.position_embd.weight"
_ROWS = 280  # of an image at most, where its file does not say it
_CAUSAL = (1536, 2560)  # the hidden sizes of E2B and E4B


def read_patches(data: bytes, patch: int, square: int, max_rows: int, normal: Normal) -> Patches:
    """An image file -> patches, those of a square of `square` by `square` one after the other."""
    return in_squares(filled(open_image(data), patch * square, max_rows, normal), patch, square)


def row_budget(file: GGUFFile, side: int) -> int:
    """The number of rows that an image makes at most. A row stands for a square of `side` pixels."""
    pixels = file.get(f"{file.architecture}.vision.image_max_pixels", int, _ROWS * side**2)
    return max(1, pixels // side**2)


def num_positions(file: GGUFFile, needed: int) -> int:
    """The number of columns, and of rows, that have an embedding: `needed` at least."""
    info = file.tensors.get(_POSITIONS)
    if info is None or len(info.shape) != 3:
        raise ModelError(f"{file.path}: tensor {_POSITIONS} (2, positions, size) is missing")
    if info.shape[1] < needed:
        raise ModelError(
            f"{file.path}: an image may have {needed} columns of patches, but {_POSITIONS} has embeddings of "
            f"{info.shape[1]}"
        )
    return info.shape[1]


def sees_both_ways(file: GGUFFile, row_size: int) -> bool:
    """True if the rows of an image see each other in the text model, as in all but the smallest models.

    Files of others do not say it, and llama.cpp decides by the size of a row.
    """
    return file.get(f"{file.architecture}.vision.is_bidirectional", bool, row_size not in _CAUSAL)


def image_layout(num_rows: int) -> Layout:
    return "<|image>", num_rows, "<image|>"
