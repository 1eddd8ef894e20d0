"""A worker with the bundled model, shared by the tests of a module, and the same model in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaski.runner.channels.worker.client import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("guide", threads=1, parallel=4) as shared:
        yield shared
