"""The shares of a model on nodes: by speed, within their memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import chaski
from chaski.ml.cpu.thread_rates import reading_rate
from chaski.ml.sharded.serving import MemberServer
from chaski.ml.sharded.shares import row_units, usual_shares
from chaski.ml.sharded.speed import BestSpeed
from tests.ml.sharded.members import KEY, Nodes, open_cpu

ARCHITECTURES = Path(__file__).parents[2] / "data" / "architectures"


def test_shares_follow_the_speed() -> None:
    assert usual_shares(90, [1000, 1000], [40e9, 20e9]) == [60, 30]
    assert usual_shares(90, [1000, 1000], [21e9, 20e9]) == [45, 45], "that is noise"
    assert usual_shares(80, [1000] * 3, [40e9, 10e9, 19e9]) == pytest.approx([45.7, 11.4, 22.9], abs=0.05)


def test_memory_is_the_bound() -> None:
    assert usual_shares(90, [50, 1000], [40e9, 20e9]) == [40, 50]
    assert usual_shares(90, [50, 60, 1000], [80e9, 40e9, 20e9]) == [
        40,
        pytest.approx(100 / 3),
        pytest.approx(50 / 3),
    ]
    assert usual_shares(90, [10, 20, 1000], [80e9, 40e9, 20e9]) == [8, 16, 66]
    assert usual_shares(90, [50, 60], [40e9, 20e9]) == [50, 60], "nobody has room to spare"
    assert usual_shares(90, [1000, 500], [40e9, None]) == [1000, 500], "a GPU is not measured"


@pytest.mark.parametrize("split", ["layers", "rows"])
def test_a_faster_node_has_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    """The answer stays the same."""
    path, key_file = ARCHITECTURES / "qwen35moe.gguf", tmp_path / "nodes.key"
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    servers = [MemberServer("127.0.0.1", 0, KEY, open_cpu, speed=partial(float, s)) for s in (10e9, 40e9)]
    with chaski.load(path, context=64, backend="cpu") as llm:
        expected = llm.generate([5, 9, 2], num_predict=9, temperature=0, ignore_eos=True).token_ids
    held = {}
    for how, share in (("by speed", ""), ("even", "=1")):
        Nodes(servers, key_file).use(monkeypatch, split, 2)
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        monkeypatch.setenv("CHASKI_NODES", ",".join(address + share for address in addresses))
        with chaski.load(path, context=64) as llm:
            assert (
                llm.generate([5, 9, 2], num_predict=9, temperature=0, ignore_eos=True).token_ids == expected
            )
            weights = {part.device: part.weights for part in llm.memory().devices}
            held[how] = [weights[address] for address in addresses]
    for server in servers:
        server.close()
    assert held["by speed"][1] > held["even"][1]
    if split == "layers":  # by rows both have all heads, which cannot be cut in these shares
        assert sum(held["by speed"]) == sum(held["even"])


def test_a_machine_is_measured_once() -> None:
    assert reading_rate(1) == reading_rate(1) > 1e8


def test_a_node_is_measured_for_each_head_and_the_best_counts() -> None:
    speeds = iter([1.0, 4.0, 2.0, *[3.0] * 7])
    speed = BestSpeed(lambda: next(speeds))
    assert [speed() for _ in range(10)] == [1.0, *[4.0] * 8, 3.0], "of the last eight"


def test_rows_are_shared_in_quarters_and_eighths() -> None:
    assert row_units([20, 10]) == [2, 1], "whole numbers as they are"
    assert row_units([4e9, 2e9]) == [3, 1], "bytes"
    assert row_units([40.5, 20.1]) == [3, 1]
    assert row_units([20.5, 20.1]) == [1, 1]
    assert row_units([27.5, 20.1]) == [1, 1]
    assert row_units([1000.5, 1.5]) == [3, 1], "nobody is without any"
    assert row_units([40.5, 10.2, 19.3]) == [5, 1, 2]
    assert row_units([20.5, 20.4, 20.3]) == [1, 1, 1]
    assert row_units([30.5, 30.4, 10.3, 10.2]) == [3, 3, 1, 1]
    assert row_units([float(number) + 0.5 for number in range(9)]) == [1] * 9
