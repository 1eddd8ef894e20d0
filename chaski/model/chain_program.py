"""Proposal of tokens by several blocks in a chain, each of which proposes one more token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski.kvcache import Cache, CacheSize
from chaski.kvcache.batch import Batch
from chaski.kvcache.part import CachePart
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.plan import Plan
from chaski.model.output_rows import HIDDEN
from chaski.model.proposing import ProposalInputs, ProposalRequest, places, text_coordinates
from chaski.model.registry import ModelConfig

__all__ = ["ChainProgram"]

F32 = npt.NDArray[np.float32]

# The most tokens of one batch of a block.
_MOST_TOGETHER = 64
# The most tokens that a chain proposes, where it has fewer blocks.
_MOST_PROPOSED = 8


class _Chain(Protocol):
    """See `OwnBlocks`."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def is_chained(self) -> bool: ...
    @property
    def block_layers(self) -> Sequence[Sequence[int]]: ...
    @property
    def proposing_layers(self) -> Sequence[int]: ...
    def propose_by(
        self, number: int, inputs: ProposalInputs, caches: Sequence[Any], outputs: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


class ChainProgram:
    """A plan for each block.

    Block k computes the last token of a sequence and the k-1 tokens proposed after it. Keys and values
    of earlier tokens are in the cache, so a proposal reads the weights of each block once. In a chain, the
    last block proposes more tokens from its own states.

    `size` is that of the cache. `most_tokens`: only the first tokens of the vocabulary are proposed.
    """

    def __init__(
        self,
        chain: _Chain,
        cache: Cache,
        backend: Backend,
        size: CacheSize,
        most_tokens: int | None = None,
    ) -> None:
        self.cache = CachePart(cache, chain.proposing_layers)
        self.most_tokens = most_tokens or chain.config.vocab_size
        self._is_chained = chain.is_chained
        self._size = chain.hidden_size
        blocks = min(len(chain.block_layers), size.max_batch)
        self._most = max(blocks, min(_MOST_PROPOSED, size.max_batch)) if self._is_chained else blocks
        self._together = max(1, min(size.sequences, min(_MOST_TOGETHER, size.max_batch) // self._most))
        self._parts = [CachePart(cache, layers) for layers in chain.block_layers[:blocks]]
        self._plans = [self._plan(chain, block, backend, most_tokens) for block in range(blocks)]

    def _plan(self, chain: _Chain, block: int, backend: Backend, most_tokens: int | None) -> Plan:
        most = block + 1 if block + 1 < len(self._parts) else self._most
        graph, tokens = Graph(), Dim("tokens", self._together * most)
        last = Dim("last", self._together)
        inputs = ProposalInputs(
            graph.input("tokens", (tokens,), DType.I32),
            graph.input("positions", (tokens,), DType.I32),
            graph.input(HIDDEN, (tokens, self._size), DType.F32),
            most_tokens,
        )
        outputs = graph.input("outputs", (last,), DType.I32)
        caches = self._parts[block].record(graph, tokens)
        states, logits = chain.propose_by(block, inputs, caches, outputs)
        if self._is_chained:
            graph.output(HIDDEN, states)
        graph.output("top", ops.top_k(logits, graph.input("counts", (last,), DType.I32), 1))
        return backend.compile(graph)

    def propose(self, requests: Sequence[ProposalRequest]) -> None:
        """Fill the requests, whose sequences are in the cache up to their last tokens.

        A request receives fewer tokens than it wants if that are more than the plans compute.
        """
        for first in range(0, len(requests), self._together):
            self._fill(requests[first : first + self._together])

    def _fill(self, requests: Sequence[ProposalRequest]) -> None:
        own = [request.row.hidden().reshape(-1, self._size).copy() for request in requests]
        states = [np.zeros((0, self._size), np.float32)] * len(requests)
        hidden: list[F32] = []
        for step in range(self._most):
            block = min(step, len(self._plans) - 1)
            going_on = [index for index, each in enumerate(requests) if len(each.proposed) < each.most]
            if not going_on:
                return
            requests = [requests[index] for index in going_on]
            own, states = [own[index] for index in going_on], [states[index] for index in going_on]
            if step == block:
                hidden = [self._hidden(block, *pair) for pair in zip(own, states, strict=True)]
            else:  # the last block again, which reads its own state of the last token
                pairs = zip([hidden[index] for index in going_on], states, strict=True)
                hidden = [np.concatenate([read, found[-1:]]) for read, found in pairs]
            states = self._step(block, requests, hidden)

    def _hidden(self, block: int, own: F32, states: F32) -> F32:
        """Return what a block reads for each of its tokens.

        `own` contains what each block reads for the first token, `states` those of the block before.
        """
        if self._is_chained:
            return np.concatenate([own[block : block + 1], states])
        return own[block::-1]

    def _step(self, block: int, requests: Sequence[ProposalRequest], hidden: Sequence[F32]) -> list[F32]:
        """Append a token to each request; return the states of the tokens of each, if a block reads them."""
        batch, part = _batch(requests), self._parts[block]
        values = {
            **part.start_forward(batch),
            "tokens": batch.tokens,
            "positions": places(batch),
            HIDDEN: np.concatenate(hidden),
            "outputs": batch.outputs,
            "counts": np.ones(len(requests), np.int32),
        }
        launch = self._plans[block].launch(values)
        top = launch.rows("top").reshape(-1, 2, 1)[:, 1, 0].astype(int).tolist()
        states = launch.rows(HIDDEN).copy() if self._is_chained else np.concatenate(hidden)
        part.undo_forward(batch)
        for request, token in zip(requests, top, strict=True):
            request.proposed.append(token)
        return np.split(states, len(requests))


def _batch(requests: Sequence[ProposalRequest]) -> Batch:
    """Return the last token of each request with its proposed tokens; logits are those after the last one."""
    tokens = [[each.token, *each.proposed] for each in requests]
    (count,) = {len(each) for each in tokens}
    starts = np.array([each.position for each in requests])
    positions = (starts[:, None] + np.arange(count)).reshape(-1).astype(np.int32)
    return Batch(
        np.array(tokens, np.int32).reshape(-1),
        positions,
        np.repeat([each.slot for each in requests], count).astype(np.int32),
        np.arange(count - 1, count * len(requests), count, dtype=np.int32),
        coordinates=text_coordinates(positions, np.repeat([each.saved for each in requests], count).tolist()),
    )
