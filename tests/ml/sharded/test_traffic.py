"""What travels between nodes for each token is what docs/cluster.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from tests.ml.sharded.members import Nodes
from tests.tiny_llama import FFN, HIDDEN, LAYERS

_FLOAT = 4


def bytes_of_a_token(split: str, count: int) -> int:
    """The formula for a dense model: the heads of a layer are together as wide as its rows here."""
    if split == "layers":
        return (count - 1) * _FLOAT * HIDDEN
    return (count - 1) * _FLOAT * (LAYERS * (HIDDEN + 2 * HIDDEN + FFN) + HIDDEN)


@pytest.mark.parametrize("split", ["layers", "rows"])
def test_bytes_of_a_token(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path, split: str
) -> None:
    nodes.use(monkeypatch, split, 2)
    sent = []
    with chaski.load(tiny_llama, prompt_cache=False) as llm:
        for tokens in (20, 30):
            before = sum(server.num_bytes for server in nodes.servers)
            llm.generate("once", num_predict=tokens, temperature=0, ignore_eos=True)
            sent.append(sum(server.num_bytes for server in nodes.servers) - before)
    assert sent[1] - sent[0] == 10 * bytes_of_a_token(split, 2)
