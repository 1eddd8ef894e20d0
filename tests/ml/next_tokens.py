"""A plan like a model's: embeddings, logits, and the top logits of every token."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph
from chaski.ml.plan import Input, Plan
from tests.ml.both_backends import bound

__all__ = ["TOP", "inputs", "next_tokens"]

TOP = 3


def next_tokens(backend: Backend, directory: Path, vocabulary: int) -> Plan:
    """Compile the plan; it computes `logits` (tokens, vocabulary) and `top` from `ids` and `counts`."""
    random = np.random.default_rng(5)
    arrays = {name: random.standard_normal((vocabulary, 32)) for name in ("table", "head")}
    weights = bound(backend, directory, {name: a.astype(np.float32) for name, a in arrays.items()})
    graph = Graph()
    tokens = Dim("tokens", 8)
    ids, counts = (graph.input(name, (tokens,), DType.I32) for name in ("ids", "counts"))
    logits = ops.linear(ops.embedding(ids, weights["table"]), weights["head"])
    graph.output("logits", logits)
    graph.output("top", ops.top_k(logits, counts, TOP))
    return backend.compile(graph)


def inputs(*ids: int) -> dict[str, Input]:
    """Return inputs for these tokens, with the maximum number of top logits."""
    return {"ids": np.array(ids, np.int32), "counts": np.full(len(ids), TOP, np.int32)}
