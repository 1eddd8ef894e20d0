"""Pooling: the outputs of a text's tokens become one vector, in models that make embeddings or rank."""

from __future__ import annotations

from enum import IntEnum

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile

__all__ = ["CLASSIFIER", "Pooling", "pooling_number", "read_pooling"]

CLASSIFIER = "cls.output.weight"
"""The tensor that makes scores of labels, in a model that ranks."""


class Pooling(IntEnum):
    """The numbers are those of `pooling_type` in a GGUF file.

    RANK: one output for each label that the model tells texts apart by.
    """

    MEAN = 1
    FIRST = 2
    LAST = 3
    RANK = 4

    def of_rows(self, is_causal: bool) -> Pooling:
        """The pooling of rows: labels are those of the last token, or of an encoder's first one."""
        if self is not Pooling.RANK:
            return self
        return Pooling.LAST if is_causal else Pooling.FIRST

    def positions(self, length: int) -> range:
        """The positions of a text of `length` tokens whose outputs are averaged."""
        if self is Pooling.FIRST:
            return range(1)
        return range(0 if self is Pooling.MEAN else length - 1, length)


def pooling_number(file: GGUFFile) -> int:
    """The number of the file's pooling, 0 for none. Where no key says it, a classifier does."""
    number = file.get(f"{file.architecture}.pooling_type", int, 0)
    return int(Pooling.RANK) if number == 0 and CLASSIFIER in file.tensors else number


def read_pooling(file: GGUFFile) -> Pooling | None:
    """The file's pooling; None for a model that makes text.

    Raises UnsupportedError for the kinds that are not here, which includes ranking by other tensors than one.
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
    if number == Pooling.RANK and CLASSIFIER not in file.tensors:
        raise UnsupportedError(
            f"{file.path}: {key} = {number} (rank) needs the tensor {CLASSIFIER}, which is not in the file"
        )
    return Pooling(number)
