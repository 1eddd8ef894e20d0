"""Each call of an operation fails once: it ends with an error or the right result, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.failing import has_compiler, preloading
from tests.faults.operations import OPERATIONS
from tests.tiers import long_unless

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs Linux and cc to make calls fail")

_ROOT = Path(__file__).parents[2]
_OF_FILES = ("open", "read", "write", "sync", "rename", "length")
_KINDS = {
    "create": (*_OF_FILES, "thread"),
    "copy": _OF_FILES,
    "pull": (*_OF_FILES, "socket", "thread"),
    "load": ("memory", "mmap", "open", "read", "thread"),
    "prefix-cache": (*_OF_FILES, "memory", "mmap", "thread"),
    "saved-state": (*_OF_FILES, "memory"),
    "batch": _OF_FILES,
}
_CASES = [(operation, kind) for operation, kinds in _KINDS.items() for kind in kinds]
_SHORT = {("batch", "write"), ("copy", "rename")}


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**preloading(tmp_path_factory.mktemp("library")), "CHASKI_ANSWERS": "0"}


def failed_calls(folder: Path, environment: dict[str, str], *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.faults.operations", str(folder), *arguments]
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr[-3000:]}"
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("operation", "kind"), long_unless(_SHORT, _CASES))
def test_each_call_fails_once(tmp_path: Path, preloaded: dict[str, str], operation: str, kind: str) -> None:
    found = failed_calls(tmp_path, preloaded, operation, kind, "--most", "60")
    assert found["wrong"] == {}


@pytest.mark.long
@pytest.mark.parametrize("operation", list(OPERATIONS))
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_disk_that_is_full_stays_full(
    tmp_path: Path, preloaded: dict[str, str], operation: str, kind: str
) -> None:
    found = failed_calls(tmp_path, preloaded, operation, kind, "--most", "20", "--all-after")
    assert found["wrong"] == {}
