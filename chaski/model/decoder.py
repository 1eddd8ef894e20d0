"""What decoders have around their layers: an embedding of tokens, a last norm, and logits."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm
from chaski.model.config import DecoderConfig

__all__ = ["Decoder"]


class Decoder(Module):
    """A model of `layers`; `output` may be tied to the embedding. Each architecture writes its own forward."""

    def __init__(self, config: DecoderConfig, layers: Sequence[Module]) -> None:
        self.config = config
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.blk = list(layers)
        self.output_norm = RMSNorm(config.hidden_size, config.eps)
        self.output = Linear(config.hidden_size, config.vocab_size, optional=True)

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        """The rows that are wanted -> logits, bounded by `softcap` where it is given; of an embedder themselves."""
        x = self.output_norm(x)
        if self.config.pooling is not None:
            return x
        logits = self.output(x) if self.output.weight.is_present else self.token_embd.project(x)
        return ops.softcap(logits, softcap) if softcap else logits
