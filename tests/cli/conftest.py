"""Commands in tests compute on one core: the model is tiny, and several test runs may share a machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_core(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")
