"""Mixtures of residual streams, and the matrices that mix them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.ml import ops
from tests.backends import FORMS

from .both_backends import results, uniform

ISAS = [isa for _, isa in FORMS]


@pytest.mark.parametrize(("streams", "outputs", "size"), [(4, 4, 37), (3, 1, 64), (1, 5, 20)])
@pytest.mark.parametrize("isa", ISAS)
def test_streams_are_added_with_their_weights(
    tmp_path: Path, streams: int, outputs: int, size: int, isa: str
) -> None:
    arrays = {"table": uniform(9, streams * size), "weights": uniform(9, streams * outputs)}

    def record(ids, w, graph):
        x = ops.embedding(ids, w["table"]).reshape(streams, size)
        mixed = ops.mix_streams(x, ops.embedding(ids, w["weights"]).reshape(streams, outputs))
        return mixed.reshape(outputs * size)

    wanted, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "iterations"), [(4, 20), (3, 1), (2, 5)])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_and_columns_of_a_matrix_add_up_to_one(
    tmp_path: Path, size: int, iterations: int, isa: str
) -> None:
    def record(ids, w, graph):
        x = ops.embedding(ids, w["table"]).reshape(size, size)
        return ops.sinkhorn(x, iterations, 1e-6).reshape(size**2)

    wanted, found = results(tmp_path, {"table": uniform(9, size**2)}, record, 9, isa)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    matrices = found.reshape(-1, size, size)
    np.testing.assert_allclose(matrices.sum(axis=1), 1, atol=1e-4)
    if iterations > 9:
        np.testing.assert_allclose(matrices.sum(axis=2), 1, atol=1e-2)
