from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ml.sharded.members import Nodes, running_nodes


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four members."""
    with running_nodes(tmp_path_factory.mktemp("nodes"), 4) as running:
        yield running
