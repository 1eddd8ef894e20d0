"""The instruction sets of this machine, one after the other."""

from __future__ import annotations

import pytest

from tests.backends import FORMS


@pytest.fixture(params=[isa for _, isa in FORMS])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)
