"""LoRA adapters of a model on several nodes: the bits of one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapted_model import adapted_answers, write_adapted
from tests.ml.sharded.members import Nodes


@pytest.mark.long
def test_adapters(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the head's machine has their files; a node gets the parts for its own matrices."""
    files = write_adapted(tmp_path)
    expected = adapted_answers(files, backend="cpu")
    for split, count in (("layers", 2), ("rows", 2), ("rows", 3)):
        nodes.use(monkeypatch, split, count)
        assert adapted_answers(files) == expected, (split, count)
