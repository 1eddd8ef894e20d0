"""The foreign backend hides its data, and the engine gives the same answers on it as on the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.ml import open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, KVRole
from chaski.ml.plan import FromLaunch
from tests.foreign import NAMES
from tests.foreign.backend import ForeignLaunch

DATA = Path(__file__).parents[1] / "data" / "architectures"
PROMPTS = [[5, 9, 2, 7, 1, 3], [5, 9, 2, 7, 1, 3, 8, 8, 4], [6] * 30]


def opened(path: Path, backend: str) -> chaski.LLM:
    return chaski.load(path, backend=backend, kv_type="f32", context=64, parallel=2, num_batch=24)


def answers(path: Path, backend: str) -> list[list[int]]:
    """Return greedy and drawn tokens of prompts with a common beginning, one after the other."""
    options = {"num_predict": 30, "seed": 3, "ignore_eos": True}
    with opened(path, backend) as model:
        return [
            list(model.generate(prompt, temperature=temperature, **options).token_ids)
            for prompt in PROMPTS
            for temperature in (0.0, 0.9)
        ]


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("name", ["qwen3moe", pytest.param("gemma3", marks=pytest.mark.long), "lfm2"])
def test_answers_are_those_of_the_reference(name: str, backend: str) -> None:
    path = DATA / f"{name}.gguf"
    assert answers(path, backend) == answers(path, "reference")


@pytest.mark.parametrize("backend", NAMES)
def test_an_answer_goes_on_past_a_full_context(backend: str) -> None:
    """Keys are moved, or computed again if the backend's pages do not allow moving."""
    options = {"num_predict": 90, "temperature": 0, "ignore_eos": True}
    with opened(DATA / "qwen3.gguf", backend) as model:
        found = [list(model.generate(PROMPTS[0], **options).token_ids) for _ in range(2)]
    assert len(found[0]) == 90
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", NAMES)
def test_nothing_on_the_device_is_an_array(backend: str) -> None:
    buffer = open_backend(backend).kv_buffer(KVRole.KEYS, 112, 1, 4, DType.F32)
    touches: list[Callable[[Any], object]] = [np.asarray, len, iter, lambda handle: handle[0]]
    for touch in touches:
        with pytest.raises(TypeError, match="on the device"):
            touch(buffer.handle)


@pytest.mark.parametrize("backend", NAMES)
def test_only_what_is_read_leaves_the_device(backend: str) -> None:
    """Results are computed only when they are read; tokens that feed the next batch are never fetched."""
    graph = Graph()
    tokens = Dim("tokens", 8)
    ids, counts = (graph.input(name, (tokens,), DType.I32) for name in ("ids", "counts"))
    x = ops.position_scale(ids, length=1, beta=1.0)
    graph.output("x", x)
    graph.output("top", ops.top_k(x, counts, 1))
    plan = open_backend(backend).compile(graph)
    given = np.array([3, 4], np.int32)
    first = plan.launch({"ids": given, "counts": np.ones(2, np.int32)})
    given[:] = 0  # it was copied
    fed = FromLaunch(np.array([7, 7], np.int32), np.array([1]), first, "top", np.array([0]), 1)
    second = plan.launch({"ids": fed, "counts": np.ones(2, np.int32)})
    np.testing.assert_allclose(second.rows("x"), 1 + np.log1p([[7], [0]]), rtol=1e-6)
    np.testing.assert_allclose(first.rows("x", 1), 1 + np.log1p([[4]]), rtol=1e-6)
    assert isinstance(first, ForeignLaunch)
    assert isinstance(second, ForeignLaunch)
    assert first.fetched == [("x", 1)]
    assert second.fetched == [("x", 2)]
