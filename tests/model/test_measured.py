"""The measured facts of `chaski models` (chaski/cli/measured.json) are true."""

from __future__ import annotations

import json

import pytest

from chaski.cli.model_table import MEASURED
from chaski.model.registry import ARCHITECTURES
from tools.measure_models import Measured, measured_rows

STORED: dict[str, Measured] = json.loads(MEASURED.read_text())
MAKE = "run `PYTHONPATH=. python -m tools.measure_models`"


def check(found: dict[str, Measured], oracle: str) -> None:
    """Check that differences are about as large as stored; processors differ a little."""
    wanted = {name: row[oracle] for name, row in STORED.items() if oracle in row}
    assert found.keys() >= wanted.keys()
    for name, value in wanted.items():
        assert value / 10 < found[name][oracle] <= 2 * value, f"{name}: {MAKE}"


@pytest.mark.long
def test_what_models_can_do_and_how_near_they_are_to_transformers() -> None:
    found = measured_rows(with_llama_cpp=False)
    assert found.keys() == STORED.keys() == ARCHITECTURES.keys(), MAKE
    for name, row in found.items():
        assert {**STORED[name], "transformers": 0, "llama.cpp": 0} == {
            **row,
            "transformers": 0,
            "llama.cpp": 0,
        }
    check(found, "transformers")


@pytest.mark.oracle
def test_how_near_models_are_to_llama_cpp() -> None:
    pytest.importorskip("xllamacpp")
    check(measured_rows(with_llama_cpp=True), "llama.cpp")
