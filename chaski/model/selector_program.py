"""Proposal of a block whose tokens fit each other: the selector of DFlash 2 after one pass of a block.

The pass gives the likeliest tokens of each place. A token's score there is its logit plus the sum of the
products of three rows: one of the token before it, one of the place's state, and its own. From the last token
of the sequence on, the best token follows the one chosen before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski.kvcache import Cache, CacheSize
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.plan import Launch
from chaski.model.block_program import BlockProgram, BlockProposing
from chaski.model.proposing import ProposalRequest

__all__ = ["SelectorProgram"]


class _Selecting(BlockProposing, Protocol):
    """See `chaski.model.drafts.dflash.Draft`."""

    @property
    def num_candidates(self) -> int: ...
    def gates(self, states: Tensor) -> Tensor: ...
    def neighbours(self, tokens: Tensor) -> tuple[Tensor, Tensor]: ...


class SelectorProgram(BlockProgram):
    """A plan for the blocks, and one for the rows of their likeliest tokens."""

    def __init__(
        self,
        draft: _Selecting,
        cache: Cache,
        backend: Backend,
        size: CacheSize,
        most_tokens: int | None = None,
    ) -> None:
        self._count = draft.num_candidates
        super().__init__(draft, cache, backend, size, most_tokens)
        graph, ids = Graph(), Dim("ids", self._max_tokens * (1 + self._count))
        before, after = draft.neighbours(graph.input("ids", (ids,), DType.I32))
        graph.output("before", before)
        graph.output("after", after)
        self._rows = backend.compile(graph)

    def record_choice(self, graph: Graph, draft: Any, states: Tensor, masks: Dim, most: int | None) -> None:
        counts = graph.input("counts", (masks,), DType.I32)
        graph.output("top", ops.top_k(draft.logits(states, most), counts, self._count))
        graph.output("gates", draft.gates(states))

    def choice_inputs(self, count: int) -> dict[str, npt.NDArray[Any]]:
        return {"counts": np.full(count, self._count, np.int32)}

    def _choose(self, launch: Launch, requests: Sequence[ProposalRequest], counts: Sequence[int]) -> None:
        top = launch.rows("top").reshape(-1, 2, self._count).copy()
        gates, found = launch.rows("gates").copy(), top[:, 1].astype(np.int64)
        tokens = found if self._token_ids is None else self._token_ids[found]
        ids = np.concatenate([[request.token for request in requests], tokens.ravel()])
        rows = self._rows.launch({"ids": ids.astype(np.int32)})
        first, before = np.split(rows.rows("before").copy(), [len(requests)])
        after = rows.rows("after")[len(requests) :].reshape(*tokens.shape, -1)
        before = before.reshape(after.shape)
        ends = np.cumsum(counts).tolist()
        for request, row, count, end in zip(requests, first, counts, ends, strict=True):
            for place in range(end - count, end):
                best = int((top[place, 0] + after[place] @ (row * gates[place])).argmax())
                request.proposed.append(int(tokens[place, best]))
                row = before[place, best]
