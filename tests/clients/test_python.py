"""Packages of PyPI: each script of tests/clients/scripts checks its own results. See install.sh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS, Run

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("with_*.py"))

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not (CLIENTS / "python").exists(), reason="tests/clients/install.sh was not run"),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_package(script: Path, run: Run) -> None:
    python = CLIENTS / "python" / script.stem.removeprefix("with_") / "bin/python"
    assert run([python, script]).splitlines()[-1] == "ok"
