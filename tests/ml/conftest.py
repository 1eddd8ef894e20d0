"""Runs tests with each instruction set of this machine."""

from __future__ import annotations

import pytest

from tests.backends import FORMS


@pytest.fixture(params=[isa for _, isa in FORMS])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)
