"""The traffic between nodes for each token matches docs/cluster.md."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.formats.quant import QuantType
from tests.ml.sharded.members import Nodes
from tests.tiny_llama import FFN, HIDDEN, LAYERS, write_tiny_llama

_FLOAT = 4


def bytes_of_a_token(split: str, count: int, matrices: QuantType = QuantType.F32) -> int:
    """Return the bytes by the formula for a dense model, whose heads are together as wide as its rows."""
    if split == "layers":
        return (count - 1) * _FLOAT * HIDDEN
    read = sum(bytes_read_by_a_product(width, count, matrices) for width in (HIDDEN, FFN))
    return (count - 1) * (LAYERS * (read + _FLOAT * 2 * HIDDEN) + _FLOAT * HIDDEN)


def bytes_read_by_a_product(width: int, count: int, matrices: QuantType) -> int:
    """Return the bytes of a row that only products read: blocks of 32 with a float each, if all parts fit."""
    if matrices is QuantType.F32 or width % (32 * count):
        return _FLOAT * width
    return width + _FLOAT * width // 32 + count


@pytest.mark.parametrize("matrices", [QuantType.F32, QuantType.Q8_0])
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_bytes_of_a_token(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, split: str, matrices: QuantType
) -> None:
    nodes.use(monkeypatch, split, 2)
    sent = []
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=matrices)
    with chaski.load(path, prompt_cache=False) as llm:
        for tokens in (20, 30):
            before = sum(server.num_bytes for server in nodes.servers)
            llm.generate("once", num_predict=tokens, temperature=0, ignore_eos=True)
            sent.append(sum(server.num_bytes for server in nodes.servers) - before)
    assert sent[1] - sent[0] == 10 * bytes_of_a_token(split, 2, matrices)
