"""Packages of npm: each script of tests/clients/scripts checks its own results. See install.sh."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS, Run

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.mjs"))

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        not (CLIENTS / "node_modules").exists(), reason="tests/clients/install.sh was not run"
    ),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_package(script: Path, run: Run, tmp_path: Path) -> None:
    # node looks for packages next to the script.
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    here = tmp_path / script.name
    shutil.copy(script, here)
    assert run(["node", here]).splitlines()[-1] == "ok"
