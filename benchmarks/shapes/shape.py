"""The contents of a file of a model's shape: its matrices without their values, and its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "Metadata", "Shape", "Vectors", "Vocabulary"]

Metadata = dict[str, int | float | str | list[int] | list[bool]]

Vectors = Iterator[tuple[str, NDArray[np.float32]]]
"""Names and values of the tensors that files have as F32: weights of norms, filters, routers."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary. Special tokens are the last ones."""

    pre_tokenizer: str
    size: int
    num_special: int
    num_merges: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, or one matrix of each expert. `name` is the one in the file, without `.weight`."""

    name: str
    rows: int
    columns: int
    layer: int = 0
    experts: int = 0
    """0 is a matrix without experts."""
    share: float = 1.0
    """The share that a token is multiplied with. Embeddings that are only looked up have 0."""
    is_head: bool = False
    """True if logits are products with it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost first."""
        return (self.experts, self.rows, self.columns) if self.experts else (self.rows, self.columns)

    @property
    def num_rows(self) -> int:
        """Rows of all experts together."""
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
        """Elements of keys and values that all layers together store of a token."""

    @property
    def attention_products(self) -> int:
        """Multiply-adds of all layers together for a token and one that it sees."""

    def metadata(self) -> Metadata:
        """Keys behind the name of the architecture."""

    def vectors(self, rng: np.random.Generator) -> Vectors: ...

    def matrices(self) -> Iterator[Matrix]: ...
