"""Choice of tokens from the results of a program that proposes: from the vocabulary or from clusters."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import Embedding, Linear
from chaski.ml.plan import Launch

__all__ = ["Clusters", "NearClusters", "TokenChoice", "TopLogit"]

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class TokenChoice(Protocol):
    """A chooser of the top token of each row. `count`: the number of results that it needs from each row."""

    @property
    def count(self) -> int: ...

    def record(self, graph: Graph, counts: Tensor, found: Tensor) -> None:
        """Record the choice from the results (n, size) of `Proposing.propose`; `counts` (n,) is an input."""

    def tokens(self, launch: Launch) -> list[int]:
        """Return the token of each row of a launch."""


class TopLogit:
    """A choice by logits, of all tokens or of those that `token_ids` lists."""

    count = 1

    def __init__(self, token_ids: I64 | None) -> None:
        self._token_ids = token_ids

    def record(self, graph: Graph, counts: Tensor, found: Tensor) -> None:
        graph.output("top", ops.top_k(found, counts, 1))

    def tokens(self, launch: Launch) -> list[int]:
        top = launch.rows("top").reshape(-1, 2, 1)[:, 1, 0].astype(int)
        chosen: list[int] = (top if self._token_ids is None else self._token_ids[top]).tolist()
        return chosen


class Clusters(Struct, frozen=True, eq=False):
    """A vocabulary in clusters of equal size, for an output layer that computes only the nearest ones.

    tokens     the tokens of each cluster (clusters, size)
    centroids  the matrix whose product with a row shows how near each cluster is
    table      the rows of tokens; their products are the logits
    nearest    the number of clusters that are computed
    """

    tokens: I64
    centroids: Linear
    table: Embedding
    nearest: int


class NearClusters:
    """A choice among near `clusters`, by rows for their output layer. A second plan fetches token rows."""

    def __init__(self, clusters: Clusters, backend: Backend, max_rows: int) -> None:
        self.count = clusters.nearest
        self._clusters = clusters
        graph = Graph()
        candidates = Dim("candidates", max_rows * self.count * clusters.tokens.shape[1])
        graph.output("rows", clusters.table(graph.input("ids", (candidates,), DType.I32)))
        self._plan = backend.compile(graph)

    def record(self, graph: Graph, counts: Tensor, found: Tensor) -> None:
        graph.output("found", found)
        graph.output("top", ops.top_k(self._clusters.centroids(found), counts, self.count))

    def tokens(self, launch: Launch) -> list[int]:
        candidates, logits = self.logits(launch)
        best = logits.argmax(axis=1)
        chosen: list[int] = candidates[np.arange(len(best)), best].tolist()
        return chosen

    def logits(self, launch: Launch) -> tuple[I64, F32]:
        """Return the tokens of the nearest clusters of each row, and their logits (n, tokens)."""
        nearest = launch.rows("top").reshape(-1, 2, self.count)[:, 1].astype(int)
        found = launch.rows("found").copy()
        candidates = self._clusters.tokens[nearest].reshape(len(found), -1)
        rows = self._plan.launch({"ids": candidates.ravel().astype(np.int32)}).rows("rows")
        return candidates, np.einsum("nch,nh->nc", rows.reshape(*candidates.shape, -1), found)
