"""Commands whose standard streams are missing or fail: they end quietly, or with a one-line error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHASKI = f"{sys.executable} -m chaski"


def shell(command: str, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=timeout)


COMMANDS = ("--help", "list", "run guide hello", "ps")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", COMMANDS)
def test_closed_streams_are_like_the_null_device(command: str, streams: str) -> None:
    null = streams.replace("<&-", "</dev/null").replace(">&-", ">/dev/null")
    closed, empty = shell(f"{CHASKI} {command} {streams}"), shell(f"{CHASKI} {command} {null}")
    assert closed.returncode == empty.returncode
    assert b"Traceback" not in closed.stdout + closed.stderr
    if "2>" not in streams:
        assert closed.stderr == empty.stderr


@pytest.mark.parametrize("command", COMMANDS[:-1])  # the last one needs a server
def test_a_full_disk_is_named(command: str) -> None:
    ended = shell(f"{CHASKI} {command} > /dev/full < /dev/null")
    assert ended.returncode == 1
    assert ended.stderr == b"Error: cannot write the output: No space left on device\n"
    assert shell(f"{CHASKI} {command} > /dev/full 2> /dev/full < /dev/null").returncode == 1


def test_a_reader_that_has_enough_ends_the_command_quietly() -> None:
    ended = shell(f"{CHASKI} --help | head -c 1; echo status ${{PIPESTATUS[0]}}")
    assert ended.stdout.endswith((b"status 0\n", b"status 1\n"))
    assert ended.stderr == b""
    ended = shell(f"{CHASKI} run guide 'how do I use fewer cores?' < /dev/null | head -c 1")
    assert ended.stderr == b""


def test_an_error_that_nobody_can_read_still_has_its_status() -> None:
    assert shell(f"{CHASKI} show no-such-model 2> /dev/full").returncode == 1


def test_notes_that_nobody_can_read_fail_no_command() -> None:
    ended = shell(f"{CHASKI} run guide hello --verbose 2> /dev/full < /dev/null")
    assert ended.returncode == 0
    assert ended.stdout == shell(f"{CHASKI} run guide hello < /dev/null").stdout


@pytest.mark.parametrize("streams", ["2>&-", "<&- >&- 2>&-"])
def test_a_server_without_standard_streams_answers(streams: str, tmp_path: Path) -> None:
    """Once a socket took descriptor 2, and the worker wrote its log into it."""
    port = 20_000 + os.getpid() % 20_000
    environment = os.environ | {"OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_MODELS": str(tmp_path)}
    server = subprocess.Popen(
        ["bash", "-c", f"exec {CHASKI} serve {streams}"], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        body = {"model": "guide", "prompt": "hello", "stream": False, "options": {"num_predict": 2}}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/generate", json.dumps(body).encode())
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=60) as reply:
                    assert json.load(reply)["done"]
                    break
            except urllib.error.URLError:  # the server does not listen yet
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) is not None
