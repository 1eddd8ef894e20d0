"""Launches: results stay with their run, rows are fetched when they are read, and results feed later runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph
from chaski.ml.plan import FromLaunch, Input, Plan
from tests.backends import BACKENDS

from .both_backends import bound

VOCABULARY = 40
TOP = 3


def next_tokens(backend: str, directory: Path) -> Plan:
    """A plan like a model's: embeddings, logits, and the top logits of every token."""
    opened = open_backend(backend, CPUOptions(threads=2))
    random = np.random.default_rng(5)
    arrays = {
        "table": random.standard_normal((VOCABULARY, 32)),
        "head": random.standard_normal((VOCABULARY, 32)),
    }
    weights = bound(opened, directory, {name: a.astype(np.float32) for name, a in arrays.items()})
    graph = Graph()
    tokens = Dim("tokens", 8)
    ids, counts = (graph.input(name, (tokens,), DType.I32) for name in ("ids", "counts"))
    logits = ops.linear(ops.embedding(ids, weights["table"]), weights["head"])
    graph.output("logits", logits)
    graph.output("top", ops.top_k(logits, counts, TOP))
    return opened.compile(graph)


def inputs(*ids: int) -> dict[str, Input]:
    return {"ids": np.array(ids, np.int32), "counts": np.full(len(ids), TOP, np.int32)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_stay_with_their_launch(tmp_path: Path, backend: str) -> None:
    plan = next_tokens(backend, tmp_path)
    expected = [plan.launch(inputs(*ids)).rows("logits").copy() for ids in ([1, 2, 3], [4], [5, 6])]
    launches = [plan.launch(inputs(*ids)) for ids in ([1, 2, 3], [4], [5, 6])]  # all in flight
    for launch, wanted in zip(launches, expected, strict=True):
        np.testing.assert_array_equal(launch.rows("logits"), wanted)
    np.testing.assert_array_equal(launches[0].rows("logits", 1, 2), expected[0][1:2])
    np.testing.assert_array_equal(launches[2].rows("logits", 1), expected[2][1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_of_one_output_are_the_input_of_the_next(tmp_path: Path, backend: str) -> None:
    """Greedy decoding of two sequences, with ids that the host fetches, and with ids that it never sees."""
    plan = next_tokens(backend, tmp_path)
    found = []
    for is_fed in (False, True):
        launch, given = plan.launch(inputs(7, 11, 7)), []
        rows = np.array([2, 1], np.int32)  # the second token of the next batch is one that is known
        for _ in range(5):
            values, places = np.array([0, 3, 0], np.int32), np.array([0, 2], np.int32)
            ids = FromLaunch(values, places, launch, "top", rows, TOP)
            given.append(launch)
            launch = plan.launch({**inputs(0, 0, 0), "ids": ids if is_fed else ids.fetch()})
            rows = np.array([0, 2], np.int32)
        found.append([each.rows("top").copy() for each in (*given, launch)])
    np.testing.assert_array_equal(found[0], found[1])
    tokens = [step.reshape(3, -1)[[0, 2], TOP].tolist() for step in found[1]]
    assert len({tuple(pair) for pair in tokens}) > 2, "the tokens go on from each other"


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, backend: str) -> None:
    plan = next_tokens(backend, tmp_path)
    with pytest.raises(ValueError, match="the inputs are ids, counts; given: ids"):
        plan.launch({"ids": np.zeros(1, np.int32)})
    with pytest.raises(ValueError, match="input counts: 2 rows, where tokens is 3, at most 8"):
        plan.launch({**inputs(1, 2, 3), "counts": np.zeros(2, np.int32)})
    with pytest.raises(ValueError, match="9 rows, where tokens is 9, at most 8"):
        plan.launch(inputs(*range(9)))
