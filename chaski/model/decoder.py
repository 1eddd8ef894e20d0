"""The parts of a decoder around its layers: token embeddings, the last norm, and logits."""

from __future__ import annotations

from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, Norm, RMSNorm
from chaski.model.classifier import Classifier
from chaski.model.config import DecoderConfig
from chaski.model.pooling import Pooling

__all__ = ["Decoder"]


class Decoder(Module):
    """The base of a decoder; subclasses add the layers, `blk`. `output` may be tied to the embedding."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.output_norm = self.norm(config)
        self.output = Linear(config.hidden_size, config.vocab_size, optional=True)
        if config.pooling is Pooling.RANK:
            self.cls = Classifier(config)

    def norm(self, config: DecoderConfig) -> Norm:
        """Return a norm of the hidden states."""
        return RMSNorm(config.hidden_size, config.eps)

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        """Return logits for the last layer's rows, bounded by `softcap` unless it is 0.

        An embedding model returns normalized rows instead, and a model that ranks a score for each label.
        """
        return self.output_of(self.output_norm(x), softcap)

    def output_of(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        """Return the result of `head` for rows that are already normalized."""
        if self.config.pooling is Pooling.RANK:
            return self.cls(x)
        if self.config.pooling is not None:
            return x
        logits = self.output(x) if self.output.weight.is_present else self.token_embd.project(x)
        return ops.softcap(logits, cap=softcap) if softcap else logits

    def plain_logits(self, x: Tensor, most_tokens: int | None = None) -> Tensor:
        """Return the logits of already normalized rows, of the first `most_tokens` tokens or of all."""
        output = self.output.weight if self.output.weight.is_present else self.token_embd.weight
        return ops.linear(x, output) if most_tokens is None else ops.first_outputs(x, output, most_tokens)
