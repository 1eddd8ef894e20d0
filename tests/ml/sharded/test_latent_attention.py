"""Latent and sparse attention on several nodes: one head of keys for all, and chosen cells on their way."""

from __future__ import annotations

import pytest

from tests.families import converted
from tests.ml.sharded.members import Nodes
from tests.ml.sharded.test_same_bits import computed

CASES = [
    *((variant, split) for variant in ("deepseek2/v2", "minicpm3/usual") for split in ("layers", "rows")),
    ("deepseek4/yarn", "rows"),
    *(
        (family, split)
        for family in ("deepseek32/narrow", "minimax_m3/usual", "glm5_next/usual")
        for split in ("layers", "rows")
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("variant", "split"), CASES)
def test_latent_attention(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, variant: str, split: str) -> None:
    path = converted(variant)
    expected = computed(path, "cpu", 20)
    nodes.use(monkeypatch, split, 2)
    assert computed(path, None, 20) == expected
