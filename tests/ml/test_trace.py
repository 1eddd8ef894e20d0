"""Traces of plans: every item of every step once, in phase order, cut for the requested threads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Weight
from chaski.ml.trace import Column, PlanTrace, TracedRun

ROWS, WIDTH, TOKENS = 1024, 64, 5


def traced(
    directory: Path, threads: int, cut_for: int | None = None
) -> tuple[TracedRun, NDArray[np.float32]]:
    """Return the second run of an embedding, a norm and two products, with its result."""
    trace = PlanTrace(cut_for)
    backend = open_backend("cpu", CPUOptions(threads=threads, trace=trace))
    rng = np.random.default_rng(5)
    arrays = {
        "table": rng.standard_normal((11, WIDTH), np.float32),
        "up": rng.standard_normal((ROWS, WIDTH), np.float32),
        "down": rng.standard_normal((WIDTH, ROWS), np.float32),
    }
    weights = {name: Weight(array.shape, plain=False, name=name) for name, array in arrays.items()}
    types = {"table": QuantType.F32, "up": QuantType.Q8_0, "down": QuantType.F32}
    path = directory / "weights.gguf"
    tensors = {name: (array, types[name]) for name, array in arrays.items()}
    write_gguf(path, {"general.architecture": "test"}, tensors)
    with open_gguf(path) as file:
        backend.place([(weights[name], file.tensors[name]) for name in arrays])
        backend.load(lambda _: None)
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", 8),), DType.I32)
    x = ops.embedding(ids, weights["table"])
    graph.output("y", ops.linear(ops.silu(ops.linear(x, weights["up"])), weights["down"]))
    plan = backend.compile(graph)
    for _ in range(2):
        rows = plan.launch({"ids": np.arange(TOKENS)}).rows("y").copy()
    assert len(trace.runs) == 2
    return trace.runs[-1], rows


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_there_once_and_phases_follow_each_other(tmp_path: Path, threads: int) -> None:
    run, _ = traced(tmp_path, threads)
    assert dict(run.sizes) == {"tokens": TOKENS}
    pieces = run.pieces
    items = {}
    for step in range(len(run.steps)):
        of_step = pieces[pieces[:, Column.STEP] == step]
        of_step = of_step[of_step[:, Column.BEGIN].argsort()]
        if len(of_step):
            assert of_step[0, Column.BEGIN] == 0
            assert (of_step[1:, Column.BEGIN] == of_step[:-1, Column.END]).all()
            items[run.steps[step].operation, run.steps[step].weights] = of_step[-1, Column.END]
    assert items["embedding", f"F32 11 × {WIDTH}"] == TOKENS
    assert items["matmul", f"Q8_0 {ROWS} × {WIDTH}"] == ROWS // 16
    assert items["matmul", f"F32 {WIDTH} × {ROWS}"] == WIDTH // 16
    assert set(pieces[:, Column.THREAD]) <= set(range(threads))
    assert (pieces[:, Column.STARTED] <= pieces[:, Column.ENDED]).all()
    phases = np.unique(pieces[:, Column.PHASE])
    for before, after in pairwise(phases):
        ended = pieces[pieces[:, Column.PHASE] == before, Column.ENDED].max()
        assert ended <= pieces[pieces[:, Column.PHASE] == after, Column.STARTED].min()
    assert run.launched <= run.joined <= run.ended
    assert run.launched <= pieces[:, Column.STARTED].min()
    assert pieces[:, Column.ENDED].max() <= run.ended
    busy = (pieces[:, Column.ENDED] - pieces[:, Column.STARTED]).sum()
    assert 0 < busy <= threads * (run.ended - run.launched)


def test_bytes_are_counted_by_step(tmp_path: Path) -> None:
    run, _ = traced(tmp_path, 1)
    by_weights = {step.weights: step.weight_bytes for step in run.steps if step.weights}
    assert by_weights[f"Q8_0 {ROWS} × {WIDTH}"] == ROWS * WIDTH // 32 * 34
    assert by_weights[f"F32 {WIDTH} × {ROWS}"] == ROWS * WIDTH * 4
    up, down = (step for step in run.steps if step.operation == "matmul")
    assert (up.rows, up.divided_bytes) == ("tokens", 4 * ROWS)
    assert (down.shared_bytes, down.divided_bytes) == (4 * ROWS, 4 * WIDTH)
    assert WIDTH < up.shared_bytes < 4 * WIDTH  # rounded to int8, with scales and sums


def test_one_thread_takes_the_pieces_of_many(tmp_path: Path) -> None:
    alone, expected = traced(tmp_path, 1)
    cut, rows = traced(tmp_path, 1, cut_for=8)
    assert (rows == expected).all()
    assert set(cut.pieces[:, Column.THREAD]) == {0}

    def largest(run: TracedRun) -> int:
        return int((run.pieces[:, Column.END] - run.pieces[:, Column.BEGIN]).max())

    assert largest(alone) == 48  # three quarters of 64 panels
    assert largest(cut) == 4  # no less than a slab
