"""Shared fixtures for tests of running models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from tests.backends import BACKENDS


@pytest.fixture(scope="session")
def endless() -> dict[str, Any]:
    """Return a request that no model ends by itself."""
    return {"prompt": "0", "temperature": 0, "ignore_eos": True}


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[chaski.LLM]:
    with chaski.load(tiny_llama, backend=request.param, threads=1) as loaded:
        yield loaded
