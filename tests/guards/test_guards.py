"""The list of guards fits the code: each guard is there, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.targets import NAMES
from tests.guards.listed import Guard, guards

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guard", guards(), ids=lambda guard: guard.what)
def test_a_guard_can_be_removed(guard: Guard) -> None:
    text = (_ROOT / guard.path).read_text()
    compile(guard.removed_from(text), guard.path, "exec")
    assert guard.by in ("simulation", *NAMES)
