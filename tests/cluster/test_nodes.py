"""The supervisor of the tests that kill heads. Needs root, Linux and Ray."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import closing

import pytest

from tests.cluster.nodes import NEEDS_RAY, Nodes

pytestmark = [
    NEEDS_RAY,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"),
]


def test_a_head_comes_again_when_its_start_took_too_long(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that such a start leaves are ended, since they would keep the port."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with closing(Nodes(1)) as nodes:
        nodes._patience = 1.5
        assert nodes.kill_head()
        until = time.monotonic() + 60
        while "timed out after 1.5 seconds" not in capfd.readouterr().err:
            assert time.monotonic() < until
            time.sleep(0.1)
        nodes._patience = 60.0
        while not (nodes._servers() and nodes._raylets(None)):
            assert time.monotonic() < until
            time.sleep(0.1)
