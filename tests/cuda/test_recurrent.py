"""Recurrent layers on a GPU: the bits of the cpu backend, however sequences are cut."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.ml import CPUOptions, open_backend
from tests.cuda.devices import BACKENDS
from tests.ml import test_state_spaces
from tests.ml.delta_plans import DeltaNet, Shape, Tokens, assert_one_answer
from tests.ml.test_short_conv import compiled, run

on_each = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.long
@on_each
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(), id="grouped"),
        pytest.param(Shape(tiled=True), id="tiled"),
        pytest.param(Shape(1, 3, 20, 80, taps=2), id="odd sizes"),
    ],
)
def test_one_answer_whatever_the_schedule(backend: str, shape: Shape) -> None:
    texts = [Tokens.random(shape, 230, seed) for seed in range(2)]
    expected = [DeltaNet(open_backend("cpu", CPUOptions(threads=1)), shape).whole(text) for text in texts]
    assert_one_answer(DeltaNet(open_backend(backend), shape), texts, expected, rounds=30)


@on_each
@pytest.mark.parametrize("taps", [2, 4])
def test_short_convolutions(backend: str, taps: int) -> None:
    first = [(0, 1, 0, 0, 1), (1, 20, 1, 0, 2), (20, 22, 20, 0, 3)]
    plans = [compiled(name, "auto", taps) for name in ("cpu", backend)]
    for segments in [first, [(0, 19, 0, 3, 4), (19, 20, 0, 3, 5), (20, 22, 20, 1, 2)], [(0, 22, 0, 5, 5)]]:
        expected, found = (run(plan, list(range(22)), segments) for plan in plans)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@on_each
@pytest.mark.parametrize("kind", test_state_spaces.SHAPES)
def test_state_spaces_and_states_with_separate_decays(backend: str, kind: str) -> None:
    expected = test_state_spaces.computed(kind, ("cpu", "auto"), [test_state_spaces.COUNT])
    for counts in ([test_state_spaces.COUNT], [1, 40, 1, 33]):
        found = test_state_spaces.computed(kind, (backend, "auto"), counts)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@on_each
@pytest.mark.parametrize(
    "segments",
    [
        [(0, 3, 0, 0, 1)],
        [(0, 2, 0, 0, 1), (1, 4, 1, 0, 2)],
        [(0, 4, 1, 0, 1)],
        [(0, 4, 0, 0, 6)],
        [(0, 4, 0, -1, 1)],
    ],
)
def test_segments_that_do_not_fit(backend: str, segments: list[tuple[int, int, int, int, int]]) -> None:
    with pytest.raises(ValueError, match="segments does not fit the batch"):
        run(compiled(backend, "auto"), list(range(4)), segments)


@on_each
def test_chunks_that_do_not_fit(backend: str) -> None:
    tokens = Tokens.random(Shape(), 4)
    delta = DeltaNet(open_backend(backend), Shape())
    with pytest.raises(ValueError, match="segments does not fit the batch"):
        delta.launch(tokens, np.array([[0, 4, 0, 99, 0, 0, 0]], np.int32))
