"""Proposal of a block of tokens at once: the last token of a sequence and masks after it, in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski.kvcache import Cache, CacheSize
from chaski.kvcache.batch import Batch
from chaski.kvcache.part import CachePart
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.plan import Launch
from chaski.model.proposing import ProposalRequest, places, text_coordinates
from chaski.model.registry import ModelConfig

__all__ = ["BlockProgram", "BlockProposing"]

# The most tokens of blocks computed together; more would need more memory for logits.
_MOST_TOGETHER = 64


class BlockProposing(Protocol):
    """See `BlockDraft`."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def token_ids(self) -> npt.NDArray[np.int64] | None: ...
    @property
    def proposing_layers(self) -> Sequence[int]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def mask_token(self) -> int: ...
    @property
    def first_predicted(self) -> int: ...

    def propose_block(
        self, tokens: Tensor, positions: Tensor, outputs: Tensor, caches: Sequence[Any]
    ) -> Tensor: ...

    def block_inputs(self, sizes: Sequence[int]) -> dict[str, npt.NDArray[Any]]: ...

    def logits(self, x: Tensor, most_tokens: int | None) -> Tensor: ...


class BlockProgram:
    """A plan that predicts the tokens at the masks of blocks, one block per sequence.

    `size` is that of the cache. `most_tokens`: only the first tokens of the vocabulary are proposed.
    """

    def __init__(
        self,
        draft: BlockProposing,
        cache: Cache,
        backend: Backend,
        size: CacheSize,
        most_tokens: int | None = None,
    ) -> None:
        self.cache = CachePart(cache, draft.proposing_layers)
        self.most_tokens = most_tokens or draft.config.vocab_size
        self._mask_token = draft.mask_token
        self._token_ids, self._block_inputs = draft.token_ids, draft.block_inputs
        together = max(draft.block_size, min(size.sequences * draft.block_size, _MOST_TOGETHER))
        self._max_tokens = min(together, size.max_batch)
        self._first = draft.first_predicted
        self._most_predicted = min(draft.block_size, self._max_tokens) - self._first
        graph, tokens = Graph(), Dim("tokens", self._max_tokens)
        masks = Dim("masks", self._max_tokens)
        states = draft.propose_block(
            graph.input("tokens", (tokens,), DType.I32),
            graph.input("positions", (tokens,), DType.I32),
            graph.input("masks", (masks,), DType.I32),
            self.cache.record(graph, tokens),
        )
        self.record_choice(graph, draft, states, masks, most_tokens)
        self._plan = backend.compile(graph)

    def record_choice(self, graph: Graph, draft: Any, states: Tensor, masks: Dim, most: int | None) -> None:
        """Record what `_choose` reads; `states` are those of predicted tokens."""
        counts = graph.input("counts", (masks,), DType.I32)
        graph.output("top", ops.top_k(draft.logits(states, most), counts, 1))

    def choice_inputs(self, count: int) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs that `record_choice` declared, for `count` predicted tokens."""
        return {"counts": np.ones(count, np.int32)}

    def propose(self, requests: Sequence[ProposalRequest]) -> None:
        """Fill the requests, whose sequences are in the cache up to their last tokens, one block each.

        A request receives fewer tokens than it wants if a block does not contain as many.
        """
        for some in self._together(requests):
            self._fill(some)

    def _together(self, requests: Sequence[ProposalRequest]) -> Iterator[Sequence[ProposalRequest]]:
        """Yield the requests in groups that fit the plan."""
        some: list[ProposalRequest] = []
        room = self._max_tokens
        for request in requests:
            count = self._num_predicted(request) + self._first
            if count > room:
                yield some
                some, room = [], self._max_tokens
            some.append(request)
            room -= count
        yield some

    def _num_predicted(self, request: ProposalRequest) -> int:
        return min(request.most, self._most_predicted)

    def _fill(self, requests: Sequence[ProposalRequest]) -> None:
        counts = [self._num_predicted(request) for request in requests]
        if not any(counts):
            return
        batch = self._batch(requests, counts)
        values = {
            **self.cache.start_forward(batch),
            "tokens": batch.tokens,
            "positions": places(batch),
            "masks": batch.outputs,
            **self._block_inputs([count + self._first for count in counts]),
            **self.choice_inputs(len(batch.outputs)),
        }
        self._choose(self._plan.launch(values), requests, counts)
        self.cache.undo_forward(batch)

    def _choose(self, launch: Launch, requests: Sequence[ProposalRequest], counts: Sequence[int]) -> None:
        """Fill the requests, for which a launch predicted that many tokens each."""
        found = self._tokens(launch)
        for request, count in zip(requests, counts, strict=True):
            request.proposed += found[:count]
            del found[:count]

    def _tokens(self, launch: Launch) -> list[int]:
        """Return the top token of each row."""
        top = launch.rows("top").reshape(-1, 2, 1)[:, 1, 0].astype(int)
        found: list[int] = (top if self._token_ids is None else self._token_ids[top]).tolist()
        return found

    def _batch(self, requests: Sequence[ProposalRequest], counts: Sequence[int]) -> Batch:
        """Return the blocks, each a group whose tokens see each other."""
        masks = self._mask_token
        sizes = [count + self._first for count in counts]
        blocks = list(zip(requests, sizes, strict=True))
        tokens = [[each.token, *[masks] * (size - 1)] for each, size in blocks]
        positions = np.concatenate([np.arange(size) + each.position for each, size in blocks])
        saved = np.repeat([each.saved for each in requests], sizes)
        ends = [np.full(size, each.position + size) for each, size in blocks]
        return Batch(
            np.concatenate(tokens).astype(np.int32),
            positions.astype(np.int32),
            np.repeat([each.slot for each in requests], sizes).astype(np.int32),
            np.flatnonzero(np.concatenate([np.arange(size) for size in sizes]) >= self._first).astype(
                np.int32
            ),
            np.concatenate(ends).astype(np.int32),
            coordinates=text_coordinates(positions.astype(np.int32), saved.tolist()),
        )
