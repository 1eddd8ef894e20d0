"""Some random batches of some types; `python -m tests.cuda.random_batches` runs many of all types."""

from __future__ import annotations

import pytest

from tests.cuda.devices import BACKENDS
from tests.cuda.emulated import NAME
from tests.cuda.random_batches import FILES, Comparison


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name",
    [
        "q4_k",
        *(pytest.param(name, marks=pytest.mark.slow) for name in FILES if name != "q4_k"),
    ],
)
def test_random_batches(backend: str, name: str) -> None:
    comparison = Comparison(FILES[name], backend, seed=len(name))
    assert comparison.run(40) == []
    assert comparison.batches >= 40


@pytest.mark.long
def test_layers_in_random_places() -> None:
    comparison = Comparison(FILES["q4_k"], NAME, in_places=True)
    assert comparison.run(40) == []
    assert comparison.batches >= 40
