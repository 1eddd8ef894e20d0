"""Proposal of a block whose tokens depend on each other: DSpark's Markov head after one pass of a block.

The pass gives logits for all tokens of the block. The head adds to those of a token a row that depends on the
token before it, so the tokens are chosen one after the other. A confidence, the probability that a token is
right if those before it are, ends the proposal where more tokens do not pay.
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
from chaski.model.proposing import TOKEN_BESIDE, ProposalRequest

__all__ = ["MarkovProgram", "paying"]

F32 = npt.NDArray[np.float32]


class _Markov(BlockProposing, Protocol):
    """See `chaski.model.drafts.dflash.Draft`."""

    @property
    def num_outputs(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    def depending(
        self, before: Tensor, logits: Tensor, states: Tensor, most_tokens: int | None
    ) -> tuple[Tensor, Tensor | None]: ...


def paying(confidences: Sequence[float]) -> int:
    """Return how many of the proposed tokens to check, at least one: those with which a batch is quickest.

    `confidences`: of each token the probability that it is right if the tokens before it are.
    """
    best, sooner, tokens, right = 1, 0.0, 1.0, 1.0
    for length, confidence in enumerate(confidences, 1):
        right *= confidence
        tokens += right
        if tokens / (1 + length * TOKEN_BESIDE) > sooner:
            best, sooner = length, tokens / (1 + length * TOKEN_BESIDE)
    return best


class MarkovProgram(BlockProgram):
    """A plan for the blocks, and one that chooses the next token of each block."""

    def __init__(
        self,
        draft: _Markov,
        cache: Cache,
        backend: Backend,
        size: CacheSize,
        most_tokens: int | None = None,
    ) -> None:
        super().__init__(draft, cache, backend, size, most_tokens)
        graph, blocks = Graph(), Dim("blocks", self._max_tokens)
        count = draft.num_outputs if most_tokens is None else most_tokens
        logits, confidence = draft.depending(
            graph.input("before", (blocks,), DType.I32),
            graph.input("logits", (blocks, count), DType.F32),
            graph.input("states", (blocks, draft.hidden_size), DType.F32),
            most_tokens,
        )
        graph.output("top", ops.top_k(logits, graph.input("counts", (blocks,), DType.I32), 1))
        self._has_confidence = confidence is not None
        if confidence is not None:
            graph.output("confidence", confidence)
        self._next = backend.compile(graph)

    def record_choice(self, graph: Graph, draft: Any, states: Tensor, masks: Dim, most: int | None) -> None:
        graph.output("logits", draft.logits(states, most))
        graph.output("states", states)

    def choice_inputs(self, count: int) -> dict[str, npt.NDArray[Any]]:
        return {}

    def _choose(self, launch: Launch, requests: Sequence[ProposalRequest], counts: Sequence[int]) -> None:
        logits, states = launch.rows("logits").copy(), launch.rows("states").copy()
        starts = np.cumsum([0, *counts[:-1]])
        found: list[list[int]] = [[] for _ in requests]
        confidences: list[list[float]] = [[] for _ in requests]
        for place in range(max(counts)):
            open_ = [index for index, count in enumerate(counts) if place < count]
            rows = starts[open_] + place
            before = [found[index][-1] if place else requests[index].token for index in open_]
            top, sure = self._step(before, logits[rows], states[rows])
            for index, token, confidence in zip(open_, top, sure, strict=True):
                found[index].append(token)
                confidences[index].append(confidence)
        for request, tokens, sure in zip(requests, found, confidences, strict=True):
            request.proposed += tokens[: paying(sure) if self._has_confidence else None]

    def _step(self, before: Sequence[int], logits: F32, states: F32) -> tuple[list[int], list[float]]:
        """Return the token of each block after the tokens `before`, and the confidence in it."""
        values = {
            "before": np.array(before, np.int32),
            "logits": logits,
            "states": states,
            "counts": np.ones(len(before), np.int32),
        }
        launch = self._next.launch(values)
        top = self._tokens(launch)
        if not self._has_confidence:
            return top, [1.0] * len(top)
        scores = launch.rows("confidence").reshape(-1).astype(np.float64)
        return top, (1 / (1 + np.exp(-scores))).tolist()
