"""Multi-token prediction (Gloeckle et al. 2024) as in DeepSeek V3 and Qwen 3 Next.

A block after the last layer reads the embedding of a token and the model's hidden state of the previous
token, and predicts the token after both. From its own hidden state it then predicts one token more.

Its keys and values depend on the token and earlier ones, as in any layer. So the model stores them with each
batch, and they are shared, dropped and reused together with all others (`chaski.model.own_blocks`). The first
token of a sequence has no hidden state before it, and no token sees its keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Graph, Operand, Tensor
from chaski.ml.nn import Embedding, Linear, Module, Norm, RMSNorm
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs

__all__ = [
    "AttendingBlocks",
    "NextnTensors",
    "StreamsHead",
    "nextn_blocks",
    "storing_only",
    "trunk_config",
]


class AttendingBlocks(ABC):
    """The usual parts of a `NextnModel`: blocks attend like layers, and pass on normalized states."""

    is_chained = True
    config: DecoderConfig

    @abstractmethod
    def embed(self, inputs: Inputs) -> Tensor: ...
    @abstractmethod
    def layer_kind(self, index: int) -> Causal: ...
    @abstractmethod
    def positions_of(self, inputs: Inputs, index: int) -> Any: ...

    @property
    def nextn_size(self) -> int:
        return self.config.hidden_size

    def embed_nextn(self, inputs: Inputs) -> Tensor:
        return self.embed(inputs)

    def nextn_kinds(self, index: int) -> Sequence[LayerKind]:
        return [self.layer_kind(index)]

    def nextn_context(self, inputs: Inputs, index: int, caches: Sequence[Any]) -> tuple[Any, ...]:
        return self.positions_of(inputs, index), *caches

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        return norm(x)

    def nextn_rows(self, layer: Any, x: Tensor, norm: Norm) -> Tensor:
        return norm(x)


class StreamsHead(Module):
    """The parts of a block under `nextn.` that belong to its layer: what makes one state of its streams."""

    def __init__(self, head: Callable[[Tensor], Tensor]) -> None:
        self.head = head


class NextnTensors(Module):
    """The block's parts outside its layer: eh_proj(enorm(embedding), hnorm(hidden state)).

    Norm, embeddings and output layer are the model's own if the file contains none for the block. Where a
    hidden state has several streams, hnorm normalizes each of them, or all together if it is as wide.
    """

    def __init__(
        self,
        config: DecoderConfig,
        names: frozenset[str],
        norm: Callable[[DecoderConfig], Norm] = lambda config: RMSNorm(config.hidden_size, config.eps),
        width: int | None = None,
    ) -> None:
        """`names`: the tensors that the file has. `norm` makes a norm of states.

        width: the elements that hnorm normalizes together; None for those of one stream.
        """
        size = config.hidden_size
        self._size, self._width = size, size if width is None else width
        self._stored_elsewhere: tuple[Norm, ...] = ()  # a tuple, whose weights are not this module's
        self.eh_proj = Linear(2 * size, size)
        self.enorm = norm(config)
        self.hnorm = norm(replace(config, hidden_size=self._width))
        if "shared_head_norm" in names:
            self.shared_head_norm = norm(config)
        if "embed_tokens" in names:
            self.embed_tokens = Embedding(config.vocab_size, size)
        if "shared_head_head" in names:
            self.shared_head_head = Linear(size, config.vocab_size)

    @classmethod
    def read(
        cls, file: GGUFFile, block: int, config: DecoderConfig, state_size: int, **options: Any
    ) -> NextnTensors | None:
        """Return the tensors of block `block`; None if the file has none or is an embedding model.

        state_size: the elements of all streams of a state. options: those of the constructor.
        """
        prefix = f"blk.{block}.nextn."
        names = {name.removeprefix(prefix).removesuffix(".weight") for name in file.tensors}
        if f"{prefix}eh_proj.weight" not in file.tensors or config.pooling is not None:
            return None
        hnorm = file.tensors.get(f"{prefix}hnorm.weight")
        width = state_size if hnorm is not None and hnorm.shape == (state_size,) else None
        return cls(config, frozenset(names), width=width, **options)

    def __call__(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return the block's input; a hidden state of several streams joins the embedding in each of them."""
        size, known = self._size, self.enorm(embedded)
        normalized = [self.hnorm(part) for part in _parts(hidden, self._width)]
        streams = [stream for part in normalized for stream in _parts(part, size)]
        joined = [self.eh_proj(ops.concat([(known, 0, 1), (stream, size, 1)])) for stream in streams]
        if len(joined) == 1:
            return joined[0]
        return ops.concat([(x, index * size, 1) for index, x in enumerate(joined)])

    def embedded(self, tokens: Tensor, usual: Tensor) -> Tensor:
        """Return the block's embeddings of tokens, or `usual`, the model's."""
        own: Embedding | None = getattr(self, "embed_tokens", None)
        return usual if own is None else own(tokens)

    def use_norm(self, norm: Norm) -> None:
        """Take the norm of states before logits that the file stores elsewhere."""
        self._stored_elsewhere = (norm,)

    def norm_or(self, usual: Norm) -> Norm:
        """Return the block's own norm of states before logits, or `usual`, the model's."""
        (elsewhere,) = self._stored_elsewhere or (usual,)
        norm: Norm = getattr(self, "shared_head_norm", elsewhere)
        return norm

    @property
    def output(self) -> Linear | None:
        """Return the block's separate output layer, or None."""
        own: Linear | None = getattr(self, "shared_head_head", None)
        return own


def _parts(x: Tensor, size: int) -> list[Tensor]:
    """Return x (n, width) in parts of `size` elements."""
    (width,) = x.shape[1:]
    assert isinstance(width, int)
    return [x] if width == size else [ops.slice(x, at, size) for at in range(0, width, size)]


def trunk_config(file: GGUFFile, config: DecoderConfig) -> DecoderConfig:
    """Return the configuration with only the layers before the blocks for multi-token prediction.

    Raises ModelError if no layer is left.
    """
    extra = file.get(f"{file.architecture}.nextn_predict_layers", int, 0)
    if not 0 <= extra < config.num_layers:
        raise ModelError(
            f"{file.path}: {extra} of {config.num_layers} blocks are for multi-token prediction, so no layer "
            "is left"
        )
    return replace(config, num_layers=config.num_layers - extra)


def nextn_blocks(file: GGUFFile, config: DecoderConfig) -> tuple[str, ...]:
    """Return the prefixes of the tensors of the blocks after the layers of `config`."""
    blocks = range(config.num_layers, file.get(f"{file.architecture}.block_count", int))
    return tuple(f"blk.{index}." for index in blocks)


@contextmanager
def storing_only(graph: Graph) -> Iterator[None]:
    """Keep, of the operations that are recorded meanwhile, those that store keys and values need."""
    first = len(graph.nodes)
    yield
    needed, kept = set[Operand](), list[Tensor]()
    for node in reversed(graph.nodes[first:]):
        if node.op == "store" or node in needed:
            kept.append(node)
            needed.update(node.operands)
    graph.nodes[first:] = reversed(kept)
