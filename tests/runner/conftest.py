"""What tests of running models share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def endless() -> dict[str, Any]:
    """A request that no model ends by itself."""
    return {"prompt": "0", "temperature": 0, "ignore_eos": True}
