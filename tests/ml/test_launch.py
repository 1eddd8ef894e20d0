"""Launches: results belong to their run, rows are fetched when read, and results feed later runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.ml import CPUOptions, open_backend
from chaski.ml.plan import FromLaunch, Plan
from tests.backends import BACKENDS

from .next_tokens import TOP, inputs, next_tokens

VOCABULARY = 40


def compiled(backend: str, directory: Path) -> Plan:
    return next_tokens(open_backend(backend, CPUOptions(threads=2)), directory, VOCABULARY)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_stay_with_their_launch(tmp_path: Path, backend: str) -> None:
    plan = compiled(backend, tmp_path)
    expected = [plan.launch(inputs(*ids)).rows("logits").copy() for ids in ([1, 2, 3], [4], [5, 6])]
    launches = [plan.launch(inputs(*ids)) for ids in ([1, 2, 3], [4], [5, 6])]  # all in flight
    for launch, wanted in zip(launches, expected, strict=True):
        np.testing.assert_array_equal(launch.rows("logits"), wanted)
    np.testing.assert_array_equal(launches[0].rows("logits", 1, 2), expected[0][1:2])
    np.testing.assert_array_equal(launches[2].rows("logits", 1), expected[2][1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_of_one_output_are_the_input_of_the_next(tmp_path: Path, backend: str) -> None:
    """It decodes two sequences greedily, with ids that the host fetches, and with ids that it never sees."""
    plan = compiled(backend, tmp_path)
    found = []
    for is_fed in (False, True):
        launch, given = plan.launch(inputs(7, 11, 7)), []
        rows = np.array([2, 1], np.int32)  # the second token of the next batch is known
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
    plan = compiled(backend, tmp_path)
    with pytest.raises(ValueError, match="the inputs are ids, counts; given: ids"):
        plan.launch({"ids": np.zeros(1, np.int32)})
    with pytest.raises(ValueError, match="input counts has 2 rows; it needs tokens = 3, at most 8"):
        plan.launch({**inputs(1, 2, 3), "counts": np.zeros(2, np.int32)})
    with pytest.raises(ValueError, match="9 rows; it needs tokens = 9, at most 8"):
        plan.launch(inputs(*range(9)))
