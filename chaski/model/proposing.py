"""Proposal of tokens from a model's hidden states: compiled apart from the model's own batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.kvcache.part import CachePart
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.model.output_rows import HIDDEN, OutputRow
from chaski.model.registry import ModelConfig
from chaski.model.token_choice import TokenChoice, TopLogit

__all__ = [
    "TOKEN_BESIDE",
    "ProposalInputs",
    "ProposalRequest",
    "Proposing",
    "ProposingCost",
    "ProposingProgram",
    "layer_bytes",
    "num_common_tokens",
    "output_bytes",
    "places",
    "text_coordinates",
    "token_bytes",
]

F32 = npt.NDArray[np.float32]

TOKEN_BESIDE = 0.1
"""The cost of an additional token in a batch, as a share of a batch of one token."""

_LARGE_VOCABULARY = 1 << 15


class ProposingCost(Struct, frozen=True):
    """The costs of a proposal and of each token in it, as shares of the time of a batch of one token."""

    token: float
    proposal: float = 0.0


class ProposalRequest(Struct, eq=False):
    """A request for `most` tokens after `token`, the last of a sequence, which was sampled from `row`.

    saved: position minus rotary coordinate of the text there; see `chaski.chat.image_rows`.
    """

    slot: int
    position: int
    token: int
    row: OutputRow
    most: int
    saved: int = 0
    proposed: list[int] = field(default_factory=list)


class ProposalInputs(Struct, frozen=True, eq=False):
    """The inputs of a graph that proposes: tokens (n) and the hidden state before each (n, size).

    positions    the numbers that rotate the tokens: these are text, so all their coordinates are the same
    most_tokens  number of tokens with logits, from the start of the vocabulary; None for all
    """

    tokens: Tensor
    positions: Tensor
    hidden: Tensor
    most_tokens: int | None


class Proposing(Protocol):
    """A part that proposes tokens for a model whose graph has the output `HIDDEN`: rows of `hidden_size`."""

    @property
    def config(self) -> ModelConfig:
        """Return the configuration of the model whose tokens are proposed."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def token_ids(self) -> npt.NDArray[np.int64] | None:
        """Return the token of each row of logits; None if the rows match the model's tokens."""

    @property
    def proposing_layers(self) -> Sequence[int]:
        """List the numbers of the layers whose caches `propose` takes."""

    def propose(self, inputs: ProposalInputs, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Record: tokens, and the hidden state before each (n, size) -> theirs, and logits."""


def num_common_tokens(vocab_size: int) -> int | None:
    """Return how many tokens at the start of the vocabulary are common; None for a small vocabulary.

    Byte-pair encoding makes tokens in the order of their frequency. Among 250,000 tokens, the first quarter
    covers nearly all of a text in English or of code, at a quarter of the cost of logits.
    """
    return None if vocab_size < _LARGE_VOCABULARY else vocab_size // 4 // 256 * 256


def token_bytes(file: GGUFFile) -> float:
    """Return the bytes that a model reads for a token."""
    return layer_bytes(file) + output_bytes(file)


def layer_bytes(file: GGUFFile, prefix: str = "blk.") -> float:
    """Return the bytes that a token reads of the tensors with this prefix, including only its experts."""
    arch = file.architecture
    used = file.get(f"{arch}.expert_used_count", int, 0) / (file.get(f"{arch}.expert_count", int, 0) or 1)
    tensors = {name: info for name, info in file.tensors.items() if name.startswith(prefix)}
    return sum(info.nbytes * (used if "_exps." in name else 1) for name, info in tensors.items())


def output_bytes(file: GGUFFile) -> float:
    """Return the bytes of the output layer, which may be the embedding."""
    name = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    return float(file.tensors[name].nbytes)


class ProposingProgram:
    """A plan that proposes a token for each of up to `sequences` sequences.

    `most_tokens`: only the first tokens of the vocabulary are proposed. `part` contains the layers that the
    plan uses without storing in them. `choice` chooses tokens if `propose` returns no logits.
    """

    def __init__(
        self,
        model: Proposing,
        cache: Cache,
        backend: Backend,
        sequences: int,
        most_tokens: int | None = None,
        part: CachePart | None = None,
        choice: TokenChoice | None = None,
    ) -> None:
        self.cache = CachePart(cache, model.proposing_layers) if part is None else part
        self.most_tokens = most_tokens or model.config.vocab_size
        self._choice: TokenChoice = TopLogit(model.token_ids) if choice is None else choice
        graph, tokens = Graph(), Dim("tokens", sequences)
        inputs = ProposalInputs(
            graph.input("tokens", (tokens,), DType.I32),
            graph.input("positions", (tokens,), DType.I32),
            graph.input(HIDDEN, (tokens, model.hidden_size), DType.F32),
            most_tokens,
        )
        hidden, found = model.propose(inputs, self.cache.record(graph, tokens))
        graph.output(HIDDEN, hidden)
        self._choice.record(graph, graph.input("counts", (tokens,), DType.I32), found)
        self._plan = backend.compile(graph)

    def propose(self, requests: Sequence[ProposalRequest]) -> None:
        """Fill the requests token by token; their sequences are in the cache up to their last tokens."""
        hidden = np.stack([request.row.hidden() for request in requests])
        first = batch = _batch(requests)
        while requests:
            found, states = self._step(batch, hidden)
            for request, token in zip(requests, found, strict=True):
                request.proposed.append(token)
            going_on = [index for index, each in enumerate(requests) if len(each.proposed) < each.most]
            requests = [requests[index] for index in going_on]
            hidden, batch = states[going_on], _batch(requests)
        self.cache.undo_forward(first)

    def _step(self, batch: Batch, hidden: F32) -> tuple[list[int], F32]:
        """Compute a batch; return the top tokens after its tokens, and their hidden states (a view).

        The batch stays in the cache until the cache is told to remove it.
        """
        values = {
            **self.cache.start_forward(batch),
            "tokens": batch.tokens,
            "positions": self.cache.positions(batch) - (batch.positions - places(batch)),
            HIDDEN: hidden,
            "counts": np.full(len(batch.tokens), self._choice.count, np.int32),
        }
        launch = self._plan.launch(values)
        return self._choice.tokens(launch), launch.rows(HIDDEN)


def places(batch: Batch) -> npt.NDArray[np.int32]:
    """Return, for each token of a batch of text, the number that rotates it."""
    assert batch.coordinates is not None, "tokens to propose after have coordinates"
    return np.ascontiguousarray(batch.coordinates[:, 0])


def text_coordinates(positions: npt.NDArray[np.int32], saved: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return the coordinates (n, 3) of tokens of text; see `ProposalRequest.saved`."""
    return np.repeat((positions - np.array(saved, np.int32))[:, None], 3, axis=1)


def _batch(requests: Sequence[ProposalRequest]) -> Batch:
    """Return a batch of the last token of each request."""
    positions = np.array([each.position + len(each.proposed) for each in requests], np.int32)
    return Batch(
        np.array([each.proposed[-1] if each.proposed else each.token for each in requests], np.int32),
        positions,
        np.array([each.slot for each in requests], np.int32),
        np.zeros(0, np.int32),
        coordinates=text_coordinates(positions, [each.saved for each in requests]),
    )
