"""The blocks for multi-token prediction of a model's own file, as a draft that is attached to the model.

Block k reads, for each token, the token's embedding and a hidden state. In a chain (DeepSeek-AI 2024, arXiv
2412.19437) this is the state of block k-1 at the token before. Block 0 stands for the model. In models that
are not chained it is the model's own state, k tokens before. Every batch stores what the blocks keep of its
tokens. The last block needs only its keys and values for that; in a chain, blocks before it are computed as
a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, Protocol

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Cache, CacheSize, Causal, LayerKind
from chaski.kvcache.previous import StoredRows
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Tensor
from chaski.ml.nn import Norm
from chaski.model.attached import StepDraft, Target
from chaski.model.chain_program import ChainProgram
from chaski.model.config import DecoderConfig
from chaski.model.input import HiddenStates, Inputs
from chaski.model.nextn import NextnTensors, storing_only
from chaski.model.proposing import (
    ProposalInputs,
    ProposingCost,
    ProposingProgram,
    layer_bytes,
    output_bytes,
    token_bytes,
)
from chaski.model.registry import Model

__all__ = ["NextnModel", "OwnBlocks", "own_blocks"]


class NextnModel(Model, Protocol):
    """A model with blocks for multi-token prediction; `AttendingBlocks` has the usual parts.

    is_chained: block k reads the state of block k-1; otherwise all blocks read states of the model.
    """

    is_chained: bool

    @property
    def config(self) -> DecoderConfig: ...
    @property
    def nextn_size(self) -> int:
        """Return the size of the states that blocks read."""

    def norm(self, config: DecoderConfig) -> Norm: ...
    def embed_nextn(self, inputs: Inputs) -> Tensor:
        """Return the embeddings of the tokens of a batch, which blocks read."""

    def nextn_layer(self, file: GGUFFile, index: int) -> Callable[..., Tensor]:
        """Return the layer of the block with the tensors `blk.{index}.`; it takes a state and a context."""

    def nextn_kinds(self, index: int) -> Sequence[LayerKind]:
        """List the caches of that layer. No token sees those of tokens that the block has no state for.

        A kind whose span states how many tokens are hidden keeps that number.
        """

    def nextn_context(self, inputs: Inputs, index: int, caches: Sequence[Any]) -> tuple[Any, ...]:
        """Return what that layer reads in addition to the state; `caches` are those of its kinds."""

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        """Return the state that a block reads from the output x of a layer, whose norm this is."""

    def nextn_rows(self, layer: Any, x: Tensor, norm: Norm) -> Tensor:
        """Return the rows that become logits from the output x of a block's layer, whose norm this is."""


def own_blocks(model: Any, file: GGUFFile) -> OwnBlocks | None:
    """Return the blocks of a model's file; None if it has none, or the model has no use for them."""
    if not hasattr(model, "nextn_layer") or model.config.pooling is not None:
        return None
    first, end = model.config.num_layers, file.get(f"{file.architecture}.block_count", int)
    present = [index for index in range(first, end) if f"blk.{index}.nextn.eh_proj.weight" in file.tensors]
    if present != list(range(first, first + len(present))) or not present:
        return None
    prefixes = tuple(f"blk.{index}." for index in present)
    tensors = {name: info for name, info in file.tensors.items() if name.startswith(prefixes)}
    part = GGUFFile(file.path, dict(file.metadata), tensors)
    return OwnBlocks(part, Target(model, file), present)


class OwnBlocks(StepDraft):
    """The blocks with the numbers `indices`, for a target that is a `NextnModel`.

    One block proposes a token and continues from its own state. Each of several blocks proposes one token.
    """

    def __init__(self, file: GGUFFile, target: Target, indices: Sequence[int]) -> None:
        super().__init__(file, target)
        model = self._model
        config = model.config
        self.hidden_size = model.nextn_size
        self.hidden_layers = (config.num_layers,)
        self._indices = tuple(indices)
        self._rows = StoredRows(self.hidden_size)
        layers, tensors = list[Callable[..., Tensor]](), list[NextnTensors]()
        for index in indices:
            own = NextnTensors.read(file, index, config, model.nextn_size, norm=model.norm)
            if own is None:
                break
            layers.append(model.nextn_layer(file, index))
            tensors.append(own)
            # The names of attributes are those of tensors: `blk.3.attn_q`, `blk.3.nextn.enorm`.
            setattr(self, f"blk.{index}", layers[-1])
            setattr(self, f"blk.{index}.nextn", own)
            names = (f"blk.{index}.{each}_norm.weight" for each in ("layer_output", "nextn.shared_head"))
            if [name in file.tensors for name in names] == [True, False]:
                own.use_norm(norm := model.norm(config))
                setattr(self, f"blk.{index}.layer_output_norm", norm)
        self._blocks = tuple(zip(layers, tensors, strict=True))

    @property
    def _model(self) -> NextnModel:
        model: Any = self.target.model
        found: NextnModel = model
        return found

    @property
    def is_chained(self) -> bool:
        """Return whether a block reads the state of the block before it."""
        return self._model.is_chained

    def _block_kinds(self) -> Sequence[Sequence[LayerKind]]:
        """Return the caches of each block. No token sees those that a block has no state for."""
        return [
            [_hiding(kind, number) for kind in self._model.nextn_kinds(index)]
            for number, index in enumerate(self._indices, 1)
        ]

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [*chain.from_iterable(self._block_kinds()), *[self._rows.kind] * len(self._indices)]

    @property
    def block_layers(self) -> Sequence[Sequence[int]]:
        """List for each block the numbers of its caches, after those of the target."""
        numbers = iter(super().proposing_layers)
        return [list(islice(numbers, len(kinds))) for kinds in self._block_kinds()]

    @property
    def proposing_layers(self) -> Sequence[int]:
        return list(chain.from_iterable(self.block_layers))

    def store(self, inputs: Inputs, hidden: HiddenStates, caches: Sequence[Any]) -> Tensor:
        """See `AttachedDraft`. The rows to propose from contain what each block reads for the next token."""
        model, count = self._model, len(self._blocks)
        state = model.nextn_state(hidden[self.hidden_layers[0]], _output_norm(model))
        usual, remaining = model.embed_nextn(inputs), iter(caches)
        own = [list(islice(remaining, len(kinds))) for kinds in self._block_kinds()]
        rows = list[Tensor]()
        for number, (layer, tensors) in enumerate(self._blocks):
            rows.append(state.rows(inputs.outputs))
            before = self._rows.previous(state, next(remaining))
            context = model.nextn_context(inputs, self._indices[number], own[number])
            x = tensors(tensors.embedded(inputs.tokens, usual), before)
            if self.is_chained and number + 1 < count:
                x = layer(x, *context, outputs=None)
                state = model.nextn_state(x, tensors.norm_or(_output_norm(model)))
                continue
            with storing_only(x.graph):
                layer(x, *context, outputs=None)
            state = before
        if count == 1:
            return rows[0]
        return ops.concat([(row, index * self.hidden_size, 1) for index, row in enumerate(rows)])

    def propose(self, inputs: ProposalInputs, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        return self.propose_by(0, inputs, caches, None)

    def propose_by(
        self, number: int, inputs: ProposalInputs, caches: Sequence[Any], outputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Record a proposal of block `number` -> states of all tokens, and logits of those at `outputs`."""
        model, (layer, tensors) = self._model, self._blocks[number]
        tokens = Inputs(inputs.tokens, inputs.positions, inputs.tokens)
        embedded = tensors.embedded(inputs.tokens, model.embed_nextn(tokens))
        context = model.nextn_context(tokens, self._indices[number], caches)
        x = layer(tensors(embedded, inputs.hidden), *context, outputs=None)
        norm = tensors.norm_or(_output_norm(model))
        state = model.nextn_state(x, norm)
        last = model.nextn_rows(layer, x if outputs is None else x.rows(outputs), norm)
        own, most = tensors.output, inputs.most_tokens
        if own is None:
            return state, self.target.logits(last, most)
        return state, own(last) if most is None else ops.first_outputs(last, own.weight, most)

    def program(
        self, cache: Cache, backend: Backend, size: CacheSize, most_tokens: int | None
    ) -> ProposingProgram | ChainProgram:
        if len(self._blocks) == 1:
            return ProposingProgram(self, cache, backend, size.sequences, most_tokens)
        return ChainProgram(self, cache, backend, size, most_tokens)

    def cost(self, output_share: float = 1.0) -> ProposingCost:
        file = self.target.file
        own = layer_bytes(self.file) / len(self._blocks) + output_share * output_bytes(file)
        return ProposingCost(token=own / token_bytes(file))


def _hiding(kind: LayerKind, number: int) -> LayerKind:
    """Return the kind of a cache whose first `number` tokens no other token sees."""
    if not isinstance(kind, Causal) or kind.span.hidden is not None:
        return kind
    return replace(kind, span=replace(kind.span, hidden=number))


def _output_norm(model: Any) -> Norm:
    norm: Norm = model.output_norm
    return norm
