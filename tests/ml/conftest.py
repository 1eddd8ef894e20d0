"""The instruction sets of this machine, one after the other."""

from __future__ import annotations

import pytest

from chaski import _native


@pytest.fixture(params=_native.isa_names())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)
