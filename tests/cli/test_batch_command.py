"""`chaski batch` with the bundled model: alone, with a server, after a kill, and with wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE, models
from tests.server.running import running

__all__ = ["models"]

TOKENS = 24


@pytest.fixture(autouse=True)
def store(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(models))
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "off")


def batch(*arguments: object) -> Result:
    return CliRunner().invoke(chaski_command, ["batch", *map(str, arguments)])


def write(path: Path, count: int) -> Path:
    def line(number: int) -> dict[str, Any]:
        if number % 2:
            url = "/v1/completions"
            asked: dict[str, Any] = {"prompt": f"Runner {number}"}
        else:
            url, asked = "/v1/chat/completions", {"messages": [{"role": "user", "content": f"{number}?"}]}
        body = {"model": "guide", "max_tokens": TOKENS, "temperature": 1.0, "seed": number, **asked}
        return {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body}

    path.write_text("".join(json.dumps(line(number)) + "\n" for number in range(count)))
    return path


def answers(path: Path) -> dict[str, Any]:
    """Return the choices of each result by its id; check that no id is repeated."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    ids = [each["custom_id"] for each in found]
    assert len(set(ids)) == len(ids)
    return {each["custom_id"]: each["response"]["body"]["choices"] for each in found}


@pytest.mark.long
def test_a_batch_that_is_killed_goes_on_and_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    requests, path = write(tmp_path / "requests.jsonl", 40), tmp_path / "requests.results.jsonl"
    alone = batch(requests, "-o", tmp_path / "alone.jsonl", "--parallel", 1)
    assert alone.exit_code == 0, alone.stderr
    assert "Requests answered: 40, in" in alone.stderr

    command = [sys.executable, "-m", "chaski", "batch", str(requests), "--parallel", "3"]
    killed = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < deadline
        assert killed.poll() is None, "it ended before it was killed"
        time.sleep(0.002)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert 5 <= path.read_bytes().count(b"\n") < 40

    again = batch(requests)
    assert again.exit_code == 0, again.stderr
    assert "(before: " in again.stderr
    assert again.stdout == f"{path}\n"
    assert answers(path) == answers(tmp_path / "alone.jsonl")
    assert "All requests already have results: 40." in batch(requests).stderr


def test_a_server_answers_a_batch(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = write(tmp_path / "requests.jsonl", 6)
    assert batch(requests, "-o", tmp_path / "here.jsonl").exit_code == 0
    with running(Settings(address=SOMEWHERE, parallel=2), models) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")
        assert batch(requests, "-o", tmp_path / "there.jsonl").exit_code == 0
    assert answers(tmp_path / "there.jsonl") == answers(tmp_path / "here.jsonl")
    write(requests, 8)
    left = batch(requests, "-o", tmp_path / "there.jsonl")
    assert left.exit_code == 1
    assert "could not connect to a server" in left.stderr


def test_errors_are_results_and_make_the_command_fail(tmp_path: Path) -> None:
    requests = write(tmp_path / "requests.jsonl", 2)
    missing = {"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": {"input": "a"}}
    requests.write_text(requests.read_text() + json.dumps(missing) + "\n")
    found = batch(requests, "--model", "missing")
    assert found.exit_code == 1
    assert "Results that are errors: 1." in found.stderr
    lines = (tmp_path / "requests.results.jsonl").read_text().splitlines()
    wrong = next(json.loads(line) for line in lines if '"custom_id":"x"' in line)
    assert wrong["response"]["status_code"] == 404
    assert wrong["response"]["body"]["error"]["message"] == "model 'missing' not found"


def test_results_of_other_requests_are_not_mixed_with_these(tmp_path: Path) -> None:
    requests = write(tmp_path / "requests.jsonl", 2)
    assert batch("--parallel", 1, requests).exit_code == 0
    requests.write_text(requests.read_text().replace('"seed": 1', '"seed": 5'))
    changed = batch(requests)
    assert changed.exit_code == 1
    assert "a result for request 'request-1', which has changed since" in " ".join(changed.stderr.split())
    requests.write_text(requests.read_text().splitlines()[1] + "\n")
    assert "for request 'request-0', which is not in FILE" in " ".join(batch(requests).stderr.split())


def test_the_requests_are_never_written_over(tmp_path: Path) -> None:
    requests = write(tmp_path / "requests.jsonl", 2)
    before = requests.read_text()
    found = batch(requests, "-o", requests)
    assert found.exit_code == 2
    assert "are the same file" in found.stderr
    assert requests.read_text() == before


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    requests = write(tmp_path / "requests.jsonl", 1)
    found = batch(requests, "-o", tmp_path / "none" / "out.jsonl")
    assert found.exit_code == 1
    assert "No such file or directory" in " ".join(found.stderr.split())
