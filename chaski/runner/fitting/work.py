"""`Work`: what a model reads and multiplies for a batch, from the headers of its file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Self

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVTypes
from chaski.kvcache.kinds import Causal, LayerKind, Recurrent
from chaski.ml.graph import DType
from chaski.model.registry import Model

__all__ = ["ContextWork", "Matrix", "Work", "bytes_per_token"]

_LAYER = re.compile(r"blk\.(\d+)\.")
_TABLES = ("token_embd", "per_layer_token_embd")
_ELEMENT_BYTES = {DType.Q8_0: 34 / 32, DType.Q4_0: 18 / 32, DType.F32: 4.0}
_USUAL_BYTES = 2.0  # F16 and BF16; I16 adds a scale to each head


class Matrix(Struct, frozen=True):
    """A tensor of weights.

    layer     number of its layer; None outside of the layers
    type      name of the type of its elements
    is_used   False for a table of which a token reads one row
    is_expert  it has a matrix for each expert
    """

    name: str
    layer: int | None
    type: str
    num_bytes: int
    elements: int
    is_used: bool
    is_expert: bool


class ContextWork(Struct, frozen=True):
    """What a layer does with the tokens before a token.

    num_bytes   bytes of a token's keys and values; of a state, all its bytes, which every token reads
    products    multiply-adds of a token with one token before it
    window      number of tokens that a token sees; None for all
    is_state    the layer keeps a state instead of tokens
    """

    num_bytes: float
    products: int
    window: int | None = None
    is_state: bool = False

    def seen(self, history: float) -> float:
        """Return how many of `history` tokens a token sees."""
        return history if self.window is None else min(history, self.window)


class Work(Struct, frozen=True):
    """The work of a model.

    contexts  by number of the layer among those that keep something of earlier tokens
    layers    number of layers
    experts   experts of a layer, and `used` of them for each token; 0 without experts
    hidden    elements of a token's row between layers
    """

    matrices: Sequence[Matrix]
    contexts: Sequence[ContextWork]
    layers: int
    experts: int
    used: int
    hidden: int

    @classmethod
    def of(cls, file: GGUFFile, network: Model, types: KVTypes) -> Self:
        """Work it out for a model whose keys and values have these types."""
        architecture = file.architecture
        heads = file.metadata.get(f"{architecture}.attention.head_count", 0)
        most = heads if isinstance(heads, int) else max(map(int, heads), default=0)  # type: ignore[arg-type]
        return cls(
            _matrices(file),
            [_context(kind, most, types) for kind in network.layer_kinds()],
            file.get(f"{architecture}.block_count", int, 0),
            *_experts(file),
            file.get(f"{architecture}.embedding_length", int, 0),
        )

    def share_of_experts(self, tokens: int) -> float:
        """Return the expected share of experts that a batch uses, if all are equally likely."""
        if not self.experts:
            return 1.0
        return float(1.0 - (1.0 - self.used / self.experts) ** tokens)

    def bytes_read(self, matrix: Matrix, tokens: int) -> float:
        """Return the bytes of a matrix that a batch reads."""
        if not matrix.is_used:
            return 0.0
        return matrix.num_bytes * (self.share_of_experts(tokens) if matrix.is_expert else 1.0)

    def products(self, matrix: Matrix, rows: int) -> float:
        """Return the multiply-adds of a matrix with `rows` tokens."""
        if not matrix.is_used:
            return 0.0
        share = self.used / self.experts if matrix.is_expert and self.experts else 1.0
        return float(matrix.elements) * share * rows


def bytes_per_token(file: GGUFFile) -> float:
    """Return the bytes of weights that decoding one token reads.

    Of experts it reads the ones that a token uses. Embeddings are looked up, unless they are the output too.
    """
    experts, used = _experts(file)
    share = used / experts if experts else 1.0
    read = sum(m.num_bytes * (share if m.is_expert else 1.0) for m in _matrices(file) if m.is_used)
    return max(read, 1.0)


def _experts(file: GGUFFile) -> tuple[int, int]:
    architecture = file.architecture
    experts = file.get(f"{architecture}.expert_count", int, 0)
    used = file.get(f"{architecture}.expert_used_count", int, 0)
    return (experts, min(used, experts)) if experts and used else (0, 0)


def _matrices(file: GGUFFile) -> list[Matrix]:
    is_tied = "output.weight" not in file.tensors
    found = []
    for name, tensor in file.tensors.items():
        layer = _LAYER.match(name)
        is_output = is_tied and name == "token_embd.weight"
        found.append(
            Matrix(
                name,
                int(layer[1]) if layer else None,
                tensor.type.name,
                tensor.nbytes,
                math.prod(tensor.shape),
                is_output or not name.startswith(_TABLES),
                "_exps." in name or "_chexps." in name,
            )
        )
    return found


def _context(kind: LayerKind, heads: int, types: KVTypes) -> ContextWork:
    if isinstance(kind, Recurrent):
        return ContextWork(4.0 * sum(s.heads * s.size for s in kind.states), 0, is_state=True)
    shape = kind.shape
    keys, values = (_ELEMENT_BYTES.get(each, _USUAL_BYTES) for each in (types.keys, types.values))
    num_bytes = shape.heads * shape.key_size * keys
    if not shape.values_in_keys:
        num_bytes += shape.heads * shape.value_size * values
    window = kind.span.visible if isinstance(kind, Causal) else kind.max_rows
    return ContextWork(num_bytes, heads * (shape.key_size + shape.value_size), window)
