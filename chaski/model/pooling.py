"""Pooling of the outputs of a text's tokens to one vector, in models that make embeddings or rank."""

from __future__ import annotations

from enum import IntEnum

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile

__all__ = ["SINGLE_LAYER", "Pooling", "classifier_of", "pooling_number", "read_pooling"]

SINGLE_LAYER = "cls.weight"
"""The tensor that makes the scores of labels in a model with a single ranking layer."""
_OUTPUT = "cls.output.weight"


class Pooling(IntEnum):
    """The kinds of pooling, numbered as `pooling_type` in GGUF files.

    RANK: one output for each label of the model.
    """

    MEAN = 1
    FIRST = 2
    LAST = 3
    RANK = 4

    def of_rows(self, is_causal: bool) -> Pooling:
        """Return the pooling of rows: labels come from the last token, or from an encoder's first one."""
        if self is not Pooling.RANK:
            return self
        return Pooling.LAST if is_causal else Pooling.FIRST

    def positions(self, length: int) -> range:
        """Return the positions whose outputs are averaged, for a text of `length` tokens."""
        if self is Pooling.FIRST:
            return range(1)
        return range(0 if self is Pooling.MEAN else length - 1, length)


def classifier_of(file: GGUFFile) -> str | None:
    """Return the name of the tensor that makes scores of labels, or None if the file has none."""
    return next((name for name in (_OUTPUT, SINGLE_LAYER) if name in file.tensors), None)


def pooling_number(file: GGUFFile) -> int:
    """Return the number of the file's pooling, 0 for none. Without a key, a classifier tensor implies it."""
    number = file.get(f"{file.architecture}.pooling_type", int, 0)
    return int(Pooling.RANK) if number == 0 and classifier_of(file) else number


def read_pooling(file: GGUFFile) -> Pooling | None:
    """Return the file's pooling; None for a model that makes text.

    Raises UnsupportedError for unsupported kinds, including ranking by other tensors.
    """
    key = f"{file.architecture}.pooling_type"
    number = pooling_number(file)
    if number == 0:
        return None
    if number not in set(Pooling):
        known = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in Pooling)
        raise UnsupportedError(
            f"{file.path}: {key} = {number} is not supported; supported: 0 (none), {known}"
        )
    if number == Pooling.RANK and classifier_of(file) is None:
        raise UnsupportedError(
            f"{file.path}: {key} = {number} (rank) needs the tensor {_OUTPUT}, which the file lacks"
        )
    return Pooling(number)
