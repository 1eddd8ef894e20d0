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

from tests.tiers import long_unless

ROOT = Path(__file__).parents[2]
CHASKI = f"{sys.executable} -m chaski"


def shell(command: str, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=timeout)


COMMANDS = ("--help", "list", "run guide hello", "ps")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", long_unless(["run guide hello"], COMMANDS))
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


@pytest.mark.long
def test_notes_that_nobody_can_read_fail_no_command() -> None:
    ended = shell(f"{CHASKI} run guide hello --verbose 2> /dev/full < /dev/null")
    assert ended.returncode == 0
    assert ended.stdout == shell(f"{CHASKI} run guide hello < /dev/null").stdout


@pytest.mark.long
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


def printed(encoding: str, *arguments: str) -> tuple[bytes, bytes]:
    """Return what a program writes to the streams of a terminal with an encoding, and of a command."""
    program = (
        "import sys, click; from chaski.standard_streams import prepare_streams; prepare_streams();"
        "text = sys.argv[1]; click.echo(text); print(text); sys.stderr.write(text); sys.stdout.flush()"
    )
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, cwd=ROOT, env=environment
    )
    assert ended.returncode == 0
    return ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("utf-8", "é “x” … █ 日 ß"),
        ("iso8859-1", 'é "x" ... # ? ß'),
        ("iso8859-1:strict", 'é "x" ... # ? ß'),
        ("cp1252", "é “x” … # ? ß"),
        ("ascii", 'e "x" ... # ? ss'),
    ],
)
def test_characters_outside_the_encoding_become_similar_ones(encoding: str, written: str) -> None:
    output, errors = printed(encoding, "é “x” … █ 日 ß")
    line = written.encode(encoding.partition(":")[0])
    assert output == line + b"\n" + line + b"\n"
    assert errors == line


def test_a_handler_that_the_user_chose_is_kept() -> None:
    assert printed("ascii:replace", "é")[0] == b"?\n?\n"


@pytest.mark.parametrize("encoding", ["utf-8", "iso8859-1", "ascii"])
def test_the_bytes_of_a_file_name_stay_as_they_are(encoding: str) -> None:
    assert printed(encoding, os.fsdecode(b"caf\xe9"))[0] == b"caf\xe9\ncaf\xe9\n"


LOCALES = ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


@pytest.mark.long
@pytest.mark.parametrize("settings", [*LOCALES, {"PYTHONIOENCODING": "iso8859-1"}], ids=str)
def test_commands_answer_in_every_locale(settings: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "chaski",
        "run",
        "guide",
        b"hello \xe9",
        "--system",
        b"\xff",
        "--stop",
        "é",
    ]
    for question in (b"caf\xe9", "wie heißt du? 日".encode()):
        ended = subprocess.run(
            command, input=question, capture_output=True, cwd=ROOT, env=os.environ | settings, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout


def test_piped_text_is_read_in_the_encoding_of_the_input(tmp_path: Path) -> None:
    program = "import sys; from chaski.standard_streams import prepare_streams; prepare_streams();"
    program += "from chaski.cli.run import _whole_prompt; print(ascii(_whole_prompt(())))"
    for encoding in ("utf-8", "iso8859-1", "utf-16"):
        ended = subprocess.run(
            [sys.executable, "-c", program],
            input="é ß".encode(encoding),
            capture_output=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONIOENCODING": f"{encoding}"},
        )
        assert ended.stdout.decode(encoding) == "'\\xe9 \\xdf'\n"
