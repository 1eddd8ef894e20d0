"""The contents of a file with a model's shape: its matrices without values, and its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "Metadata", "Shape", "Vectors", "Vocabulary"]

Metadata = dict[str, int | float | str | list[int] | list[bool]]

Vectors = Iterator[tuple[str, NDArray[np.float32]]]
"""Names and values of the tensors that files store as F32: weights of norms, filters, routers."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary. Special tokens are the last ones."""

    pre_tokenizer: str
    size: int
    num_special: int
    num_merges: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, or one matrix of each expert. `name` is the name in the file, without `.weight`."""

    name: str
    rows: int
    columns: int
    layer: int = 0
    experts: int = 0
    """0 for a matrix without experts."""
    share: float = 1.0
    """The share that multiplies a token; 0 for embeddings that are only looked up."""
    is_head: bool = False
    """True if it computes logits."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape, outermost dimension first."""
        return (self.experts, self.rows, self.columns) if self.experts else (self.rows, self.columns)

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all experts together."""
        return max(self.experts, 1) * self.rows


class Shape(Protocol):
    """The sizes of a model."""

    @property
    def architecture(self) -> str: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def heads_per_kv_head(self) -> int: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def history_elements(self) -> int:
        """Return the number of elements of keys and values that all layers store for a token."""

    @property
    def attention_products(self) -> int:
        """Return the multiply-adds of attention in all layers for a token and one token that it sees."""

    def metadata(self) -> Metadata:
        """Return the metadata; keys follow the name of the architecture."""

    def vectors(self, rng: np.random.Generator) -> Vectors: ...

    def matrices(self) -> Iterator[Matrix]: ...
