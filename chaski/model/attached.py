"""Drafts that are not models by themselves: they read hidden states of their target and propose tokens.

The target notes hidden states while its graph is recorded. After that the draft records what it stores with
each batch, so its keys and values are shared, dropped and reused together with the target's. A second plan
proposes tokens (`chaski.model.proposing`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ModelError, OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.formats.quant import QuantType
from chaski.kvcache import Cache, CacheSize, LayerKind
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module
from chaski.model.block_program import BlockProgram
from chaski.model.chain_program import ChainProgram
from chaski.model.input import HiddenStates, Inputs
from chaski.model.proposing import (
    TOKEN_BESIDE,
    ProposalInputs,
    ProposingCost,
    ProposingProgram,
    layer_bytes,
    output_bytes,
    token_bytes,
)
from chaski.model.registry import Model, ModelConfig

__all__ = ["AttachedDraft", "BlockDraft", "StepDraft", "Target"]


class Target(Struct, frozen=True, eq=False):
    """The model that a draft proposes for, and its file."""

    model: Model
    file: GGUFFile

    @property
    def hidden_size(self) -> int:
        """Return the size of the target's hidden states."""
        return self.file.get(f"{self.file.architecture}.embedding_length", int)

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the target's embeddings of tokens as its file stores them, unscaled."""
        model: Any = self.model
        found: Tensor = model.token_embd(tokens)
        return found

    def logits(self, x: Tensor, most_tokens: int | None = None) -> Tensor:
        """Return the target's logits of normalized rows, of the first `most_tokens` tokens or of all."""
        model: Any = self.model
        found: Tensor = model.plain_logits(x, most_tokens)
        return found


class AttachedDraft(Module):
    """A draft of one architecture: a `StepDraft` or a `BlockDraft`. Weights are named as in its file.

    If the file has no embeddings or output layer (`token_embd`, `output`), the draft uses the target's.

    hidden_layers  the layers of the target whose inputs the draft reads; the number of all layers stands for
                   the output of the last one. The last layer then computes all tokens instead of only those
                   that need logits (`HiddenStates.last` contains those without it)
    token_ids      the token of each row of logits; None if the rows match the target's tokens
    """

    hidden_layers: tuple[int, ...] = ()
    token_ids: npt.NDArray[np.int64] | None = None

    def __init__(self, file: GGUFFile, target: Target) -> None:
        self.file = file
        self.target = target

    @property
    def config(self) -> ModelConfig:
        """Return the configuration of the target, whose tokens the draft proposes."""
        return self.target.model.config

    @abstractmethod
    def layer_kinds(self) -> Sequence[LayerKind]:
        """List the caches that the draft needs in addition to those of its target."""

    @property
    def is_ordered(self) -> bool:
        """Return whether logits are in the order of the target's tokens, common ones first."""
        return self.token_ids is None

    @property
    def proposing_layers(self) -> Sequence[int]:
        """List the layers whose caches `propose` takes: the draft's own, numbered after the target's."""
        first = len(self.target.model.layer_kinds())
        return range(first, first + len(self.layer_kinds()))

    @abstractmethod
    def store(self, inputs: Inputs, hidden: HiddenStates, caches: Sequence[Any]) -> Tensor | None:
        """Record the storage for each batch of the target; return the rows to propose from (outputs, size).

        `caches` are those of `layer_kinds`.
        """

    @abstractmethod
    def program(
        self, cache: Cache, backend: Backend, size: CacheSize, most_tokens: int | None
    ) -> ProposingProgram | ChainProgram | BlockProgram:
        """Compile the plan that proposes the first `most_tokens` tokens, or all, in the target's cache."""

    @abstractmethod
    def cost(self, output_share: float = 1.0) -> ProposingCost:
        """Return the time that proposing takes when it computes `output_share` of the output layer."""

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, unscaled."""
        own: Embedding | None = getattr(self, "token_embd", None)
        return self.target.embedded(tokens) if own is None else own(tokens)

    def logits(self, x: Tensor, most_tokens: int | None) -> Tensor:
        """Return the logits of normalized rows, of the first `most_tokens` tokens or of all."""
        own: Linear | None = getattr(self, "output", None)
        if own is None:
            return self.target.logits(x, most_tokens)
        return own(x) if most_tokens is None else ops.first_outputs(x, own.weight, most_tokens)

    def read_token_ids(self) -> npt.NDArray[np.int64]:
        """Read the tensor `d2t`: the target's token of each logit row. Raises ModelError and OptionError."""
        info = self.file.tensors["d2t"]
        if info.type not in (QuantType.I32, QuantType.I64):
            raise ModelError(f"{self.file.path}: d2t has the type {info.type.name}; it must be I64")
        ids = np.frombuffer(info.data.tobytes(), "<i4" if info.type is QuantType.I32 else "<i8")
        vocab_size = self.config.vocab_size
        foreign = ids[(ids < 0) | (ids >= vocab_size)]
        if len(foreign):
            raise self.misfit(f"it proposes token {foreign[0]}, but the model has {vocab_size} tokens")
        return ids.astype(np.int64)

    def bytes_share(self, output_share: float) -> float:
        """Return the bytes read per proposed token, as a share of those that the target reads per token."""
        own = self.file if "output.weight" in self.file.tensors else self.target.file
        num_bytes = layer_bytes(self.file) + output_share * output_bytes(own)
        return num_bytes / token_bytes(self.target.file)

    def check_hidden(self, hidden: HiddenStates) -> None:
        """Raise OptionError or UnsupportedError if the target lacks some of the hidden states to read."""
        target, missing = self.target.file, hidden.missing
        if not hidden.num_layers:
            raise UnsupportedError(
                f"{target.path}: models of architecture {target.architecture!r:.80} do not provide the "
                f"hidden states that {self.file.path.name} reads; load the model without this draft"
            )
        if missing:
            raise self.misfit(
                f"it reads the states before layer {missing[-1]}, but the model has "
                f"{hidden.num_layers} layers"
            )

    def misfit(self, reason: str) -> OptionError:
        """Return the error for a target that the draft was not made for."""
        return OptionError(
            f"{self.file.path.name} cannot be the draft of {self.target.file.path.name}: {reason}; "
            "a draft proposes for the model that it was trained with"
        )


class StepDraft(AttachedDraft):
    """A draft that proposes one token and continues from its own hidden state: a `Proposing`.

    hidden_size  the size of the rows that `store` returns and that `propose` takes and returns
    """

    hidden_size: int

    @abstractmethod
    def store(self, inputs: Inputs, hidden: HiddenStates, caches: Sequence[Any]) -> Tensor: ...

    @abstractmethod
    def propose(self, inputs: ProposalInputs, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """See `Proposing`. `caches` are those of `proposing_layers`."""

    def program(
        self, cache: Cache, backend: Backend, size: CacheSize, most_tokens: int | None
    ) -> ProposingProgram | ChainProgram:
        return ProposingProgram(self, cache, backend, size.sequences, most_tokens)

    def cost(self, output_share: float = 1.0) -> ProposingCost:
        return ProposingCost(token=self.bytes_share(output_share))


class BlockDraft(AttachedDraft):
    """A draft that proposes several tokens at once, from the last token and masks after it.

    block_size       the most tokens in a block, including the last token of the sequence
    mask_token       the token that stands for tokens not yet known
    first_predicted  the place in the block from which tokens are predicted: 1 if each mask predicts itself,
                     0 if each token predicts the next one
    """

    block_size: int
    mask_token: int
    first_predicted: int = 1

    @abstractmethod
    def propose_block(
        self, tokens: Tensor, positions: Tensor, outputs: Tensor, caches: Sequence[Any]
    ) -> Tensor:
        """Record the proposal of blocks of tokens; return normalized states of tokens at indices `outputs`.

        `logits` maps these to logits. `caches` are those of `proposing_layers`. A token sees its whole block
        if the layer allows it.
        """

    def block_inputs(self, sizes: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Return the further inputs that `propose_block` declares, for blocks of these sizes."""
        return {}

    def program(
        self, cache: Cache, backend: Backend, size: CacheSize, most_tokens: int | None
    ) -> BlockProgram:
        return BlockProgram(self, cache, backend, size, most_tokens)

    def cost(self, output_share: float = 1.0) -> ProposingCost:
        share = self.bytes_share(output_share)
        return ProposingCost(token=share * TOKEN_BESIDE, proposal=share)
