"""`chaski cluster status`: nodes, and the replicas on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command

REPLICA = {"name": "ab12", "pid": 7, "places": 4, "answers": 1, "is_leaving": False}


def status(monkeypatch: pytest.MonkeyPatch, reply: Any) -> list[list[str]]:
    monkeypatch.setattr("chaski.remote.running_server", lambda: SimpleNamespace(get=lambda path: reply))
    result = CliRunner().invoke(chaski_command, ["cluster", "status"])
    if result.exit_code:
        raise AssertionError(result.output)
    return [line.split("  ") for line in result.output.splitlines()]


def test_replicas_are_listed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"label": f"{name} (10.0.0.{n})", "cpus": 4} for n, name in enumerate(["one", "two"])]
    found = [REPLICA | {"node": "one (10.0.0.0)"}, REPLICA | {"node": "gone (10.0.0.9)", "is_leaving": True}]
    lines = status(monkeypatch, {"nodes": nodes, "models": [{"name": "guide:latest", "replicas": found}]})
    assert [[word.strip() for word in line if word.strip()] for line in lines] == [
        ["NODE", "CPUS", "MODEL", "REPLICA", "PROCESS", "PLACES"],
        ["one (10.0.0.0)", "4", "guide:latest", "ab12", "7", "1 of 4 taken"],
        ["two (10.0.0.1)", "4", "-"],
        ["gone (10.0.0.9)", "lost", "guide:latest", "ab12", "7", "1 of 4 taken, leaves"],
    ]


def test_shards_are_listed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"label": f"{name} (10.0.0.{n})", "cpus": 4} for n, name in enumerate(["one", "two"])]
    replica = REPLICA | {"node": "one (10.0.0.0)", "shards": [["one (10.0.0.0)", 8], ["two (10.0.0.1)", 9]]}
    lines = status(monkeypatch, {"nodes": nodes, "models": [{"name": "large", "replicas": [replica]}]})
    assert [[word.strip() for word in line if word.strip()] for line in lines[1:]] == [
        ["one (10.0.0.0)", "4", "large", "ab12", "7", "1 of 4 taken"],
        ["one (10.0.0.0)", "4", "large", "ab12, shard 0", "8"],
        ["two (10.0.0.1)", "4", "large", "ab12, shard 1", "9"],
    ]


def test_a_server_without_a_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="the server computes by itself"):
        status(monkeypatch, {"models": []})
