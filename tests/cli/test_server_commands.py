"""`ps`, `stop` and `run` with a running server, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE, models
from tests.server.running import Running, running

__all__ = ["models"]


@pytest.fixture
def server(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE, parallel=2), models) as found:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{found.port}")
        yield found


def chaski(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, arguments)


def test_run_asks_the_server(server: Running) -> None:
    result = chaski(
        "run", "guide", "how do I use fewer cores?", "--temperature", "0", "--num-predict", "6", "--verbose"
    )
    assert result.stdout == "Use `--threads`: `chaski\n"
    assert "eval count:" in result.stderr
    assert [loaded.name for loaded in server.services.models.loaded] == ["guide:latest"]
    raw = chaski("run", "guide", "--raw", "Llamas", "--temperature", "0", "--num-predict", "4")
    assert raw.exit_code == 0
    wrong = chaski("run", "guide", "x", "--top-p", "nan")
    assert wrong.exit_code == 1


def test_ps_and_stop(server: Running) -> None:
    assert chaski("ps").stdout.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "ENGINE"]
    server.post("/api/generate", {"model": "helper"})
    (_, row) = chaski("ps").stdout.splitlines()
    assert row.split()[0] == "helper:latest"
    assert "100% CPU" in row
    assert row.endswith("from now    native")
    server.post("/api/generate", {"model": "helper", "keep_alive": -1})
    assert chaski("ps", "HELP").stdout.splitlines()[1].endswith("Forever    native")
    assert chaski("stop", "helper").exit_code == 0
    assert len(chaski("ps").stdout.splitlines()) == 1
    missing = chaski("stop", "nobody")
    assert missing.exit_code == 1
    assert 'couldn\'t find model "nobody" to stop' in missing.stderr


def test_without_a_server() -> None:
    for arguments in (["ps"], ["stop", "guide"]):
        result = chaski(*arguments)
        assert result.exit_code == 1
        assert "run 'chaski serve' to start one" in result.stderr
    alone = chaski("run", "guide", "how do I use fewer cores?", "--temperature", "0", "--num-predict", "6")
    assert alone.stdout == "Use `--threads`: `chaski\n"


def test_serve_refuses_what_is_not_safe() -> None:
    result = chaski("serve", "--host", "0.0.0.0")
    assert result.exit_code == 1
    assert "CHASKI_OPEN=1" in result.stderr
