"""Weights that are read into the caches before the inputs of a plan are available."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from chaski.ml import CPUOptions, machine, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph
from chaski.ml.plan import Plan, ReadsAhead

from .both_backends import bound

WIDTH = 512
MATRIX = WIDTH * WIDTH * 4


def two_products(directory: Path, threads: int) -> Plan:
    """Compile a plan that multiplies by two matrices of a megabyte each, one after the other."""
    backend = open_backend("cpu", CPUOptions(threads))
    random = np.random.default_rng(3)
    arrays = {name: random.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in ("a", "b")}
    weights = bound(backend, directory, arrays)
    graph = Graph()
    x = graph.input("x", (Dim("tokens", 4), WIDTH), DType.F32)
    graph.output("y", ops.linear(ops.linear(x, weights["a"]), weights["b"]))
    return backend.compile(graph)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_of_the_next_launch_are_read_once(tmp_path: Path, threads: int) -> None:
    plan = two_products(tmp_path, threads)
    assert isinstance(plan, ReadsAhead)
    assert plan.bytes_to_read_ahead == machine.largest_cache() // 2
    x = np.ones((1, WIDTH), np.float32)
    expected = plan.launch({"x": x}).rows("y").copy()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(2):  # a launch uses the data, and the next one starts again
            assert plan.read_ahead(ours.fileno(), 100_000) == 100_000
            assert plan.read_ahead(ours.fileno(), MATRIX + 1) == MATRIX + 1
            assert plan.read_ahead(ours.fileno(), 10 * MATRIX) == 2 * MATRIX, "all weights"
            assert plan.read_ahead(ours.fileno(), 0) == 2 * MATRIX, "what is there already stays there"
            np.testing.assert_array_equal(plan.launch({"x": x}).rows("y"), expected)
        theirs.send(b"x")
        assert plan.read_ahead(ours.fileno(), 10 * MATRIX) is None, "there is something to do"
        ours.recv(1)
        assert plan.read_ahead(ours.fileno(), 10 * MATRIX) == 2 * MATRIX
        np.testing.assert_array_equal(plan.launch({"x": x}).rows("y"), expected)
        theirs.close()
        assert plan.read_ahead(ours.fileno(), 10 * MATRIX) is None, "whoever waits has to know this"


def test_it_ends_when_something_comes(tmp_path: Path) -> None:
    """Weights are read repeatedly, which takes longer than the arrival."""
    plan = two_products(tmp_path, 2)
    assert isinstance(plan, ReadsAhead)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Timer(0.05, theirs.send, [b"x"]).start()
        until = time.monotonic() + 20
        while plan.read_ahead(ours.fileno(), 10 * MATRIX) is not None:
            assert time.monotonic() < until
            plan.launch({"x": np.ones((1, WIDTH), np.float32)}).wait()
        assert ours.recv(1) == b"x"
