"""Parts of RWKV models (Peng et al. 2023): mixtures of a token's row and the one before it."""

from __future__ import annotations

import numpy as np

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Checkpoints, Recurrent, StateShape, matrix_states
from chaski.ml import ops
from chaski.ml.graph import KVBuffer, Tensor, Weight
from chaski.ml.nn import Module

__all__ = ["Lerp", "Vector", "rwkv_kind"]


def rwkv_kind(file: GGUFFile, size: int, shifts: int) -> Recurrent:
    """Return the kind of a layer: a matrix for each head of its rows, and the last rows of `shifts` blocks.

    Raises ArithmeticError for heads of no elements.
    """
    head = file.get(f"{file.architecture}.wkv.head_size", int)
    matrices = matrix_states(size // head, head, head)
    return Recurrent((matrices, *(StateShape(1, size),) * shifts), Checkpoints(count=4), states_kept=4)


class Vector(Module):
    """A vector with the name `weight`."""

    def __init__(self, size: int) -> None:
        self.weight = Weight((size,))


class Lerp(Module):
    """Mixtures of the row of each token and that of the token before it: a + (b - a) weight.

    Each is a convolution with two taps. `stored` is the shape of the weights of all mixtures in the file.
    """

    def __init__(self, count: int, size: int, stored: tuple[int, ...]) -> None:
        self.weight = Weight((count, size), host=True, stored=stored)

    def __call__(self, x: Tensor, previous: KVBuffer, segments: Tensor) -> list[Tensor]:
        """Return the mixtures of x (n, size); `previous` has the last row of each sequence.

        Each convolution writes the same rows to `previous`.
        """
        return [
            ops.short_conv(x, np.stack([share, 1 - share], axis=1), previous, segments)
            for share in self.weight.elements
        ]
