"""The dense layers that sentence-transformers applies after the pooling of an embedding model."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Tensor
from chaski.ml.nn import Linear, Module

__all__ = ["DenseLayers"]


class DenseLayers(Module):
    """Up to two layers, depending on the file.

    They have no activation, so applying them before or after the mean gives the same result.
    """

    inline = True

    def __init__(self, file: GGUFFile, size: int) -> None:
        arch = file.architecture
        inner = file.get(f"{arch}.dense_2_feat_out", int, 0) or file.get(f"{arch}.dense_3_feat_in", int, size)
        self.dense_2 = Linear(size, inner, optional=True)
        self.dense_3 = Linear(inner, file.get(f"{arch}.dense_3_feat_out", int, size), optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        for dense in (self.dense_2, self.dense_3):
            x = dense(x) if dense.weight.is_present else x
        return x
