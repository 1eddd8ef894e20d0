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
from chaski.model.proposing import ProposalRequest, places, text_coordinates
from chaski.model.registry import ModelConfig

__all__ = ["BlockProgram"]

# The most tokens of blocks computed together; more would need more memory for logits.
_MOST_TOGETHER = 64


class _BlockProposing(Protocol):
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

    def propose_block(
        self,
        tokens: Tensor,
        positions: Tensor,
        outputs: Tensor,
        caches: Sequence[Any],
        most_tokens: int | None,
    ) -> Tensor: ...


class BlockProgram:
    """A plan that predicts the tokens at the masks of blocks, one block per sequence.

    `size` is that of the cache. `most_tokens`: only the first tokens of the vocabulary are proposed.
    """

    def __init__(
        self,
        draft: _BlockProposing,
        cache: Cache,
        backend: Backend,
        size: CacheSize,
        most_tokens: int | None = None,
    ) -> None:
        self.cache = CachePart(cache, draft.proposing_layers)
        self.most_tokens = most_tokens or draft.config.vocab_size
        self._mask_token = draft.mask_token
        self._token_ids = draft.token_ids
        together = max(draft.block_size, min(size.sequences * draft.block_size, _MOST_TOGETHER))
        self._max_tokens = min(together, size.max_batch)
        self._most_masks = min(draft.block_size, self._max_tokens) - 1
        graph, tokens = Graph(), Dim("tokens", self._max_tokens)
        masks = Dim("masks", self._max_tokens)
        logits = draft.propose_block(
            graph.input("tokens", (tokens,), DType.I32),
            graph.input("positions", (tokens,), DType.I32),
            graph.input("masks", (masks,), DType.I32),
            self.cache.record(graph, tokens),
            most_tokens,
        )
        graph.output("top", ops.top_k(logits, graph.input("counts", (masks,), DType.I32), 1))
        self._plan = backend.compile(graph)

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
            count = self._num_masks(request) + 1
            if count > room:
                yield some
                some, room = [], self._max_tokens
            some.append(request)
            room -= count
        yield some

    def _num_masks(self, request: ProposalRequest) -> int:
        return min(request.most, self._most_masks)

    def _fill(self, requests: Sequence[ProposalRequest]) -> None:
        counts = [self._num_masks(request) for request in requests]
        if not any(counts):
            return
        batch = self._batch(requests, counts)
        values = {
            **self.cache.start_forward(batch),
            "tokens": batch.tokens,
            "positions": places(batch),
            "masks": batch.outputs,
            "counts": np.ones(len(batch.outputs), np.int32),
        }
        top = self._plan.launch(values).rows("top").reshape(-1, 2, 1)[:, 1, 0].astype(int)
        found = (top if self._token_ids is None else self._token_ids[top]).tolist()
        self.cache.undo_forward(batch)
        for request, count in zip(requests, counts, strict=True):
            request.proposed += found[:count]
            del found[:count]

    def _batch(self, requests: Sequence[ProposalRequest], counts: Sequence[int]) -> Batch:
        """Return the blocks, each a group whose tokens see each other."""
        masks = self._mask_token
        blocks = list(zip(requests, counts, strict=True))
        tokens = [[each.token, *[masks] * count] for each, count in blocks]
        positions = np.concatenate([np.arange(count + 1) + each.position for each, count in blocks])
        saved = np.repeat([each.saved for each in requests], np.add(counts, 1))
        ends = [np.full(count + 1, each.position + count + 1) for each, count in blocks]
        return Batch(
            np.concatenate(tokens).astype(np.int32),
            positions.astype(np.int32),
            np.repeat([each.slot for each in requests], np.add(counts, 1)).astype(np.int32),
            np.flatnonzero(np.concatenate([np.arange(count + 1) for count in counts])).astype(np.int32),
            np.concatenate(ends).astype(np.int32),
            coordinates=text_coordinates(positions.astype(np.int32), saved.tolist()),
        )
