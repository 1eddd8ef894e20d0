"""Latent attention on several nodes: one head of keys for all nodes, and matrices of single heads."""

from __future__ import annotations

import pytest

from tests.families import converted
from tests.ml.sharded.members import Nodes
from tests.ml.sharded.test_same_bits import computed


@pytest.mark.long
@pytest.mark.parametrize("variant", ["deepseek2/v2", "minicpm3/usual"])
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_latent_attention(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, variant: str, split: str) -> None:
    path = converted(variant)
    expected = computed(path, "cpu", 20)
    nodes.use(monkeypatch, split, 2)
    assert computed(path, None, 20) == expected
