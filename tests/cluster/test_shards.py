"""A model over several machines: network namespaces with links of 1 Gbit/s. Needs root and Linux."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ClusterError
from chaski.formats.quant import QuantType
from tests import tiny_vision
from tests.cluster.namespaces import Namespaces
from tests.ml.sharded.test_traffic import bytes_of_a_token
from tests.tiny_llama import write_tiny_llama

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root, ip and tc"),
]

ARCHITECTURES = Path(__file__).parents[1] / "data" / "architectures"
PROMPT = [5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 5, 5, 2, 9, 9, 1, 4, 7]


@pytest.fixture(scope="module")
def machines() -> Iterator[Namespaces]:
    with closing(Namespaces(4, "1gbit")) as running:
        yield running


@pytest.fixture
def addresses(machines: Namespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run a member on each machine; yield the addresses."""
    key = tmp_path / "nodes.key"
    key.write_text("what the machines of this test know")
    key.chmod(0o600)
    monkeypatch.setenv("CHASKI_NODES_KEY", str(key))
    found = []
    processes = []
    for node in range(machines.number):
        address = f"{machines.address(node)}:11500"
        process = machines.start(node, ["shard", "--listen", address, "--key", str(key), "--threads", "1"])
        assert process.stderr is not None
        assert "computes parts of models" in process.stderr.readline()
        found.append(address)
        processes.append(process)
    yield found
    for process in processes:
        process.kill()
        process.wait()


def computed(path: Path, backend: str) -> object:
    options = {"num_predict": 40, "temperature": 0, "ignore_eos": True, "num_keep": 16}
    with chaski.load(path, context=64, parallel=2, num_batch=24, backend=backend) as llm:
        logits = llm.logits(PROMPT * 3)
        answers = [result.token_ids for result in llm.generate_many([PROMPT, [*PROMPT, 3, 3]], **options)]
    return logits.tobytes(), answers


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "qwen3moe", "qwen35"])
def test_the_same_bits(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    path = ARCHITECTURES / f"{name}.gguf"
    if name == "llama":
        path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0)
    expected = computed(path, "cpu")
    for split, count in (("layers", 2), ("rows", 2), ("rows", 4)):
        monkeypatch.setenv("CHASKI_NODES", ",".join(addresses[:count]))
        monkeypatch.setenv("CHASKI_SPLIT", split)
        assert computed(path, "sharded") == expected


@pytest.mark.parametrize(("split", "count"), [("layers", 2), ("rows", 2), ("rows", 4)])
def test_the_same_bits_behind_images(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, split: str, count: int
) -> None:
    path = tiny_vision.DATA / "gemma3.gguf"
    expected = tiny_vision.logits(path, "two")
    monkeypatch.setenv("CHASKI_NODES", ",".join(addresses[:count]))
    monkeypatch.setenv("CHASKI_SPLIT", split)
    np.testing.assert_array_equal(tiny_vision.logits(path, "two"), expected)


@pytest.mark.parametrize(("split", "count"), [("layers", 2), ("rows", 2)])
def test_bytes_on_the_links(
    machines: Namespaces,
    addresses: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    split: str,
    count: int,
) -> None:
    """A value takes the bytes of the formula, and its frame at most 400 more; replies are extra."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0)
    monkeypatch.setenv("CHASKI_NODES", ",".join(addresses[:count]))
    monkeypatch.setenv("CHASKI_SPLIT", split)
    sent = []
    with chaski.load(path, prompt_cache=False) as llm:
        for tokens in (40, 140):
            before = sum(map(machines.sent_bytes, range(count)))
            llm.generate("once", num_predict=tokens, temperature=0, ignore_eos=True)
            sent.append(sum(map(machines.sent_bytes, range(count))) - before)
    found = (sent[1] - sent[0]) / 100
    values = bytes_of_a_token(split, count, QuantType.Q8_0)
    frames = 1 if split == "layers" else (count - 1) * count * (4 * 2 + 1)
    replies = count * 3000  # the best tokens, with their logits
    print(f"{split} of {count}: {values} bytes of values a token, {found:.0f} on the links")
    assert values < found < values + 400 * frames + replies


def test_a_link_that_is_cut(
    machines: Namespaces, addresses: list[str], monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    monkeypatch.setenv("CHASKI_NODES", ",".join(addresses))
    monkeypatch.setenv("CHASKI_SPLIT", "rows")
    monkeypatch.setattr("chaski.ml.sharded.head.SILENCE", 3.5)
    with chaski.load(tiny_llama) as llm:
        llm.generate("once", num_predict=4)
        machines.cut(3)
        with pytest.raises(ClusterError, match=rf"node {addresses[3]} is lost: it has sent nothing for 4 s"):
            llm.generate("once", num_predict=100_000)
