"""Plans sample the tokens that samplers choose, and the engine launches sampled batches ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.ml import open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Weight
from chaski.runner.engine.ahead import Ahead
from chaski.runner.engine.batch import PreparedBatch
from chaski.sample.options import SamplingOptions
from chaski.sample.sampler import Sampler
from tests.cuda.devices import BACKENDS
from tests.ml.test_top_k import F32, write_table
from tests.tiny_llama import write_tiny_llama

MOST, ROWS = 40, 64
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 3.0, "top_k": MOST, "top_p": 1.0},
    {"temperature": 1e-9},
    {"temperature": 1.5, "top_k": 1},
    {"top_p": 0.0},
    {"top_p": 0.5, "min_p": 0.2, "temperature": 2.0},
    {"top_p": 1.0, "min_p": 1.0},
    {"top_p": 1.0, "min_p": 0.01, "temperature": 50.0},
]

on_each = pytest.mark.parametrize("backend", ["reference", *BACKENDS])


def logits_of(width: int) -> F32:
    """Return logits that are random, equal, few, far apart, and some that have no sample."""
    random = np.random.default_rng(width)
    table = (3 * random.standard_normal((ROWS, width))).astype(np.float32)
    table[10] = 1.5
    table[11, 1:] = -np.inf
    table[12] *= 1e30
    table[13] = np.round(table[13])
    table[14] = -np.inf
    table[15, width // 2] = np.nan
    table[16, width // 3] = np.inf
    return table


@on_each
@pytest.mark.parametrize("width", [7, 300])
def test_a_plan_samples_what_samplers_choose(tmp_path: Path, backend: str, width: int) -> None:
    table = logits_of(width)
    write_table(tmp_path / "t.gguf", table)
    weight, rows = Weight(table.shape, name="table"), Dim("rows", ROWS)
    graph = Graph()
    ids, counts = (graph.input(name, (rows,), DType.I32) for name in ("ids", "counts"))
    chances = graph.input("chances", (rows, ops.NUM_CHANCES), DType.I32)
    top = ops.top_k(ops.embedding(ids, weight), counts, MOST)
    graph.output("y", ops.sample(top, chances))
    opened = open_backend(backend)
    with open_gguf(tmp_path / "t.gguf") as file:
        opened.place([(weight, file.tensors["table"])])
        plan = opened.compile(graph)
        opened.load(lambda _: None)
    for options in OPTIONS:
        samplers = [Sampler(SamplingOptions(**options, seed=seed)) for seed in range(ROWS)]
        assert all(sampler.is_foreseen(MOST) for sampler in samplers)
        inputs = {
            "ids": np.arange(ROWS, dtype=np.int32),
            "counts": np.array([sampler.num_top_logits(MOST) for sampler in samplers], np.int32),
            "chances": np.array([sampler.chances(0, 1)[0] for sampler in samplers], np.int32),
        }
        found = plan.launch(inputs).rows("y")[:, 0].tolist()
        for row, sampler in enumerate(samplers):
            try:
                assert found[row] == sampler.sample(table[row]).token_id, (options, row)
            except chaski.SamplingError:
                assert 0 <= found[row] < width
    opened.close()


def test_chances_are_those_of_later_samples() -> None:
    sampler = Sampler(SamplingOptions(seed=5))
    told = sampler.chances(0, 4)
    assert sampler.chances(1, 2) == told[1:3]
    sampler.skip()
    assert sampler.chances(0, 3) == told[1:]


@pytest.mark.parametrize(
    "options", [{"typical_p": 0.5}, {"xtc_probability": 0.5}, {"top_k": 0}, {"top_k": 41}]
)
def test_some_options_are_not_foreseen(options: dict[str, Any]) -> None:
    assert not Sampler(SamplingOptions(**options)).is_foreseen(MOST)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sampled_batches_are_launched_ahead(tmp_path: Path, backend: str) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    mistaken: list[int] = []
    advance = Ahead.advance

    def advanced(self: Ahead, upcoming: PreparedBatch | None) -> bool:
        found = advance(self, upcoming)
        if found and upcoming is not None:
            mistaken.append(len(upcoming.mistaken))
        return found

    requests: Any = [
        {"seed": seed, "temperature": 0.5 + seed / 4, "top_p": 0.95, "min_p": 0.01, "num_predict": 20 + seed}
        for seed in range(3)
    ]
    with chaski.load(path, backend="cpu") as cpu:
        expected = [cpu.generate("one two", **options).token_ids for options in requests]
    with patch.object(Ahead, "advance", advanced), chaski.load(path, backend=backend) as gpu:
        found = [gpu.generate("one two", **options).token_ids for options in requests]
    assert found == expected
    assert len(mistaken) > 50
    assert not any(mistaken)
