"""Operations that GPUs lack are refused when a model is loaded."""

from __future__ import annotations

import pytest

from chaski.errors import UnsupportedError
from chaski.ml import open_backend
from chaski.ml.graph import Dim, DType, Graph
from tests.cuda.emulated import NAME


def test_a_missing_operation_is_named() -> None:
    graph = Graph()
    x = graph.input("x", (Dim("tokens", 4), 8), DType.F32)
    graph.output("y", graph.record("fold", (x,), x.shape))
    with pytest.raises(UnsupportedError, match="no kernel for fold: load the model with the cpu backend"):
        open_backend(NAME).compile(graph)
