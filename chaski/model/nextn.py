"""Multi-token prediction (Gloeckle et al. 2024) as DeepSeek V3 and Qwen 3 Next have it.

A block after the last layer reads the embedding of a token and the model's hidden state of the token before,
and predicts the token after both. Run again on its own hidden state, it predicts one token more.

Its keys and values of a token depend on that token and those before, as in any layer. So the model stores
them with each batch, and they are shared, dropped and taken over with all others. The first token of a
sequence has no hidden state before it, and no token sees its keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, KVShape, LayerKind, RecurrentLayer, previous_row
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm
from chaski.model.config import DecoderConfig

__all__ = ["NextnTensors", "before", "nextn_kinds"]


class NextnTensors(Module):
    """The parts of such a block besides those of a layer: eh_proj(enorm(embedding), hnorm(hidden state)).

    Norm, embeddings and output layer are the model's own where the file has none for the block.
    """

    def __init__(self, config: DecoderConfig, names: frozenset[str]) -> None:
        size, eps = config.hidden_size, config.eps
        self._size = size
        self.eh_proj = Linear(2 * size, size)
        self.enorm = RMSNorm(size, eps)
        self.hnorm = RMSNorm(size, eps)
        if "shared_head_norm" in names:
            self.shared_head_norm = RMSNorm(size, eps)
        if "embed_tokens" in names:
            self.embed_tokens = Embedding(config.vocab_size, size)
        if "shared_head_head" in names:
            self.shared_head_head = Linear(size, config.vocab_size)

    @classmethod
    def read(cls, file: GGUFFile, block: int, config: DecoderConfig) -> NextnTensors | None:
        """Return those of the block of that number; None where the file has none, or makes embeddings."""
        prefix = f"blk.{block}.nextn."
        names = {name.removeprefix(prefix).removesuffix(".weight") for name in file.tensors}
        if f"{prefix}eh_proj.weight" not in file.tensors or config.pooling is not None:
            return None
        return cls(config, frozenset(names))

    def __call__(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return self.eh_proj(ops.concat([(self.enorm(embedded), 0, 1), (self.hnorm(hidden), self._size, 1)]))

    def embedded(self, tokens: Tensor, usual: Tensor) -> Tensor:
        """The embeddings of tokens: `usual` are the model's."""
        own: Embedding | None = getattr(self, "embed_tokens", None)
        return usual if own is None else own(tokens)

    def normalized(self, x: Tensor, usual: RMSNorm) -> Tensor:
        """The rows of the block, normalized; `usual` is the model's norm."""
        norm: RMSNorm = getattr(self, "shared_head_norm", usual)
        return norm(x)

    @property
    def output(self) -> Linear | None:
        """The output layer of the block's own."""
        own: Linear | None = getattr(self, "shared_head_head", None)
        return own


def nextn_kinds(shape: KVShape, hidden_size: int) -> Sequence[LayerKind]:
    """The storage of the block: its keys and values, and the hidden states of the tokens before."""
    return [Causal(shape, AttentionSpan(hidden=1)), previous_row(hidden_size)]


def before(hidden: Tensor, cache: RecurrentLayer) -> Tensor:
    """The hidden state of the token before each one."""
    return ops.previous_row(hidden, cache.states[0], cache.rows[0], cache.segments)
