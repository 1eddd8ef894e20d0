"""What a model is run on: the vocabulary that model, cache and runner share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import Tensor

__all__ = ["Batch", "Inputs"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one or more sequences that are computed together; all arrays are int32.

    tokens, positions, sequences have one entry a token. `outputs` lists the indices of the tokens whose
    logits are wanted. Tokens of one sequence stand in ascending order of position.

    `ends` has for each token the position before which it sees its sequence. It is given for tokens that see
    beyond themselves, as those of an image see all of it, and never reaches beyond the batch; None is each up
    to itself.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The same as symbols, while a model records its graph. `outputs` indexes the rows to keep at the end."""

    tokens: Tensor
    positions: Tensor
    outputs: Tensor
