"""The short convolution: kernels against the definition, with the same bits however a sequence is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, KVRole, Rope
from chaski.ml.plan import Plan
from tests.backends import FORMS

F32 = npt.NDArray[np.float32]

CHANNELS, TAPS, ROWS = 1032, 4, 6
PLACES = [("reference", "auto"), *FORMS]


def compiled(backend: str, isa: str, taps: int = TAPS) -> Plan:
    """Compile a plan whose input is cosines and sines of the token ids."""
    opened = open_backend(backend, CPUOptions(threads=2, isa=isa))
    random = np.random.default_rng(2)
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", 64),), DType.I32)
    segments = graph.input("segments", (Dim("segments", 4), 5), DType.I32)
    frequencies = random.uniform(0.1, 3, CHANNELS // 2).astype(np.float32)
    x = ops.rope_table(ids, Rope(frequencies)).reshape(CHANNELS)
    states = opened.kv_buffer(KVRole.STATES, ROWS, taps - 1, CHANNELS, DType.F32)
    filter = random.standard_normal((CHANNELS, taps)).astype(np.float32)
    graph.output("y", ops.short_conv(x, filter, states, segments))
    return opened.compile(graph)


def run(plan: Plan, ids: Sequence[int], segments: list[tuple[int, int, int, int, int]]) -> F32:
    inputs = {"ids": np.array(ids), "segments": np.array(segments).reshape(-1, 5)}
    return plan.launch(inputs).rows("y").copy()


@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize(("backend", "isa"), PLACES)
def test_kernels_follow_the_definition(backend: str, isa: str, taps: int) -> None:
    expected, found = (compiled(*place, taps=taps) for place in (("reference", "auto"), (backend, isa)))
    # One token, many, and fewer than the taps; the second batch continues from rows of the first, and writes
    # two states of one sequence.
    first = [(0, 1, 0, 0, 1), (1, 20, 1, 0, 2), (20, 22, 20, 0, 3)]
    for segments in [first, [(0, 19, 0, 3, 4), (19, 20, 0, 3, 5), (20, 22, 20, 1, 2)], [(0, 22, 0, 5, 1)]]:
        ids = np.arange(22).tolist()
        np.testing.assert_allclose(run(found, ids, segments), run(expected, ids, segments), atol=1e-5)


@pytest.mark.parametrize("isa", _native.isa_names())
def test_bits_do_not_depend_on_how_a_sequence_is_cut(isa: str) -> None:
    plan = compiled("cpu", isa)
    ids = np.random.default_rng(1).integers(1000, size=40).tolist()
    whole = run(plan, ids, [(0, 40, 0, 0, 1)])
    parts, row, begin = [], 0, 0
    for count in (1, 2, 1, 3, 17, 1, 15):
        other = list(range(7))  # some tokens of another sequence, before it in the batch
        segments = [(0, 7, 0, 0, 5), (7, 7 + count, 7, row, row % 2 + 1)]
        parts.append(run(plan, other + ids[begin : begin + count], segments)[7:])
        row, begin = row % 2 + 1, begin + count
    assert (np.concatenate(parts) == whole).all()


@pytest.mark.parametrize("isa", _native.isa_names())
def test_a_batch_leaves_the_states_of_two_places(isa: str) -> None:
    plan = compiled("cpu", isa)
    ids = np.random.default_rng(3).integers(1000, size=20).tolist()
    whole = run(plan, ids, [(0, 20, 0, 0, 1)])
    for place in (1, 2, 3, 11, 19):
        split = run(plan, ids, [(0, place, 0, 0, 2), (place, 20, 0, 0, 3)])
        rest = run(plan, ids[place:], [(0, 20 - place, 0, 2, 4)])
        assert (split == whole).all()
        assert (rest == whole[place:]).all()


@pytest.mark.parametrize(
    "segments",
    [
        [(0, 3, 0, 0, 1)],
        [(0, 5, 0, 0, 1)],
        [(0, 2, 0, 0, 1), (1, 4, 1, 0, 2)],
        [(0, 0, 0, 0, 1), (0, 4, 0, 0, 2)],
        [(0, 2, 0, 0, 1), (2, 4, 1, 0, 2)],
        [(0, 4, 1, 0, 1)],
        [(0, 4, 0, 0, 0)],
        [(0, 4, 0, 0, ROWS)],
        [(0, 4, 0, -1, 1)],
        [],
    ],
    ids=str,
)
def test_segments_that_do_not_fit_are_refused(segments: list[tuple[int, int, int, int, int]]) -> None:
    plan = compiled("cpu", "auto")
    with pytest.raises(ValueError, match="segments"):
        run(plan, [0] * 4, segments)
