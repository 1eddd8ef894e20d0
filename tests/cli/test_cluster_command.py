"""`chaski cluster status`: nodes, their replicas, and applications; `chaski cluster remove`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command

FREE = {"cores": 1.5, "memory": 16_000_000_000, "gpus": 0.0}
NODE = {"cpus": 4, "memory": 64_000_000_000, "gpu_memory": 0, "is_drained": False, "free": FREE}
REPLICA = {"name": "ab12", "pid": 7, "places": 4, "answers": 1, "is_leaving": False}


def status(monkeypatch: pytest.MonkeyPatch, reply: Any) -> list[list[str]]:
    monkeypatch.setattr("chaski.remote.running_server", lambda: SimpleNamespace(get=lambda path: reply))
    result = CliRunner().invoke(chaski_command, ["cluster", "status"])
    if result.exit_code:
        raise AssertionError(result.output)
    return [line.split("  ") for line in result.output.splitlines()]


def test_replicas_are_listed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [NODE | {"label": f"{name} (10.0.0.{n})", "gpus": n} for n, name in enumerate(["one", "two"])]
    nodes[1]["is_drained"] = True
    found = [REPLICA | {"node": "one (10.0.0.0)"}, REPLICA | {"node": "gone (10.0.0.9)", "is_leaving": True}]
    lines = status(monkeypatch, {"nodes": nodes, "models": [{"name": "guide:latest", "replicas": found}]})
    assert [[word.strip() for word in line if word.strip()] for line in lines] == [
        ["NODE", "CPUS", "GPUS", "MEMORY", "MODEL", "REPLICA", "PROCESS", "PLACES"],
        [
            "one (10.0.0.0)",
            "4, 1.5 free",
            "0",
            "64 GB, 16 GB free",
            "guide:latest",
            "ab12",
            "7",
            "1 of 4 taken",
        ],
        ["two (10.0.0.1), drained", "4, 1.5 free", "1", "64 GB, 16 GB free", "-"],
        ["gone (10.0.0.9)", "lost", "guide:latest", "ab12", "7", "1 of 4 taken, leaves"],
    ]


def test_shards_are_listed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [NODE | {"label": f"{name} (10.0.0.{n})", "gpus": n} for n, name in enumerate(["one", "two"])]
    replica = REPLICA | {"node": "one (10.0.0.0)", "shards": [["one (10.0.0.0)", 8], ["two (10.0.0.1)", 9]]}
    lines = status(monkeypatch, {"nodes": nodes, "models": [{"name": "large", "replicas": [replica]}]})
    assert [[word.strip() for word in line if word.strip()] for line in lines[1:]] == [
        ["one (10.0.0.0)", "4, 1.5 free", "0", "64 GB, 16 GB free", "large", "ab12", "7", "1 of 4 taken"],
        ["one (10.0.0.0)", "4, 1.5 free", "0", "64 GB, 16 GB free", "large", "ab12, shard 0", "8"],
        ["two (10.0.0.1)", "4, 1.5 free", "1", "64 GB, 16 GB free", "large", "ab12, shard 1", "9"],
    ]


def test_memory_of_gpus_is_shown_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NODE | {"label": "one", "gpus": 2.0, "gpu_memory": 160_000_000_000}
    _, line = status(monkeypatch, {"nodes": [node], "models": []})
    assert [word.strip() for word in line if word.strip()] == [
        "one",
        "4, 1.5 free",
        "2 (160 GB)",
        "64 GB, 16 GB free",
        "-",
    ]


def test_a_server_without_a_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="this server has no cluster"):
        status(monkeypatch, {"models": []})


def test_applications_are_listed_with_the_servers_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NODE | {"label": "one", "gpus": 0}
    application: dict[str, Any] = {
        "replicas": 2,
        "starting": 0,
        "nodes": ["one"],
        "cores": 0.5,
        "memory": 3_000_000_000,
    }
    wanted: dict[str, Any] = {"name": "chaski-guide-1", "model": "guide:latest"}
    wanted |= {"wanted_by": ["a:1", "b:2"], "is_leaving": False, "seconds_left": None}
    orphan: dict[str, Any] = {"name": "chaski-2", "model": "", "wanted_by": [], "starting": 1, "memory": 0}
    orphan |= {"is_leaving": False, "seconds_left": 211.7}
    leaving = orphan | {"name": "chaski-3", "is_leaving": True}
    found = [application | each for each in (wanted, orphan, leaving)]
    lines = status(monkeypatch, {"nodes": [node], "models": [], "applications": found})
    assert [[word.strip() for word in line if word.strip()] for line in lines[3:]] == [
        ["APPLICATION", "WANTED BY", "REPLICAS", "EACH RESERVES", "STATE"],
        ["chaski-guide-1", "a:1, b:2", "2", "0.5 cores, 3 GB", "wanted"],
        ["chaski-2", "-", "2, 1 starting", "0.5 cores", "orphan, ends in 212 s"],
        ["chaski-3", "-", "2, 1 starting", "0.5 cores", "ends"],
    ]


def test_an_orphan_is_removed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    server = SimpleNamespace(post=lambda path, body: asked.append((path, body)))
    monkeypatch.setattr("chaski.remote.running_server", lambda: server)
    result = CliRunner().invoke(chaski_command, ["cluster", "remove", "chaski-2"])
    assert result.output == "chaski-2 ends\n"
    assert asked == [("/api/cluster/remove", {"application": "chaski-2"})]
