"""The file with a line of JSON for each request: its content, data that it never contains, and failures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from chaski.env import Environment
from chaski.errors import OptionError, WorkerError
from chaski.server.http.access_log import AccessLog
from chaski.server.http.exchanges import Exchanges
from chaski.server.http.log_file import STANDARD_ERROR, LogFile
from chaski.server.in_process import InProcess
from chaski.server.settings import Settings
from chaski.server.telemetry.exchange import EXCHANGE, Exchange
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until

FIELDS = [
    *("time", "id", "client", "key", "method", "path", "status", "seconds", "bytes", "cut_off", "model"),
    *("prompt_tokens", "cached_tokens", "generated_tokens", "dropped_tokens", "first_token_seconds"),
    *("done", "error"),
]
CHAT = {"model": "helper", "messages": [{"role": "user", "content": "a secret"}], "stream": False}


def lines(path: Path, count: int) -> list[Any]:
    """Wait until a file has this many lines, and return them."""
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


@contextmanager
def logging_to(path: Path, models: Path, script: Script, **settings: Any) -> Iterator[Running]:
    with running(
        Settings(address=SOMEWHERE, access_log=str(path), **settings), models, script.open
    ) as server:
        yield server


def test_a_line_tells_what_a_request_took(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    path = tmp_path / "log"
    with running(Settings(address=SOMEWHERE, access_log=str(path)), models) as server:
        asked = {**CHAT, "options": {"num_predict": 4, "ignore_eos": True}}
        for _ in range(2):
            answer = server.post("/api/chat?key=secret", asked)
        server.post("/v1/embeddings", {"model": "helper", "input": "a secret"})
        server.get("/api/version")
        (first, again, vector, version) = lines(path, 4)
    assert list(first) == list(version) == FIELDS
    assert again["id"] == answer.headers["x-request-id"] != first["id"]
    assert (again["client"], again["key"], again["method"], again["path"]) == (
        "127.0.0.1",
        None,
        "POST",
        "/api/chat",
    )
    assert (again["status"], again["bytes"], again["cut_off"]) == (200, len(answer.body), False)
    told = answer.json
    assert again["model"] == "helper:latest"
    assert again["prompt_tokens"] == told["prompt_eval_count"]
    assert again["cached_tokens"] == told["prompt_cached_count"] > first["cached_tokens"] == 0
    assert (again["generated_tokens"], again["dropped_tokens"], again["done"]) == (4, 0, "length")
    assert 0 < again["first_token_seconds"] < again["seconds"]
    assert vector["generated_tokens"] == 0
    assert version["model"] is version["prompt_tokens"] is version["done"] is version["error"] is None
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_nobody_says_where_a_request_comes_from(models: Path, tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", models, Script()) as server:
        server.get("/api/version", **{"X-Forwarded-For": "10.1.2.3"})
        (line,) = lines(tmp_path / "log", 1)
    assert line["client"] == "127.0.0.1"


def test_several_answers_are_counted_together(models: Path, tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", models, Script()) as server:
        server.post("/v1/chat/completions", {**CHAT, "n": 3})
        (line,) = lines(tmp_path / "log", 1)
        one = server.post("/api/chat", CHAT).json
    assert line["generated_tokens"] == 3 * one["eval_count"] > 0
    assert line["done"] == "stop"


def test_failures_and_clients_that_leave(models: Path, tmp_path: Path) -> None:
    script = Script(pieces=["a", WorkerError("broken secret")])
    path = tmp_path / "log"
    with logging_to(path, models, script) as server:
        server.post("/api/chat", {**CHAT, "stream": True})
        server.post("/api/chat", {**CHAT, "model": "nobody"})
        server.post("/api/chat", b"{")
        server.get("/nothing")
        script.hold, script.pieces = threading.Event(), ["a"] * 5
        sent = json.dumps(CHAT).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
            client.sendall(head.encode() + sent)
            wait_until(lambda: server.services.models.loaded[0].users)
        broken, missing, bad, nothing, left = lines(path, 5)
        script.hold.set()
    assert (broken["status"], broken["error"], broken["done"]) == (200, "WorkerError", "error")
    assert broken["generated_tokens"] == 1
    assert (missing["status"], missing["error"], missing["model"]) == (404, "ModelNotFoundError", None)
    assert (bad["status"], bad["model"]) == (400, None)
    assert bad["error"] is not None
    assert (nothing["status"], nothing["error"]) == (404, None)
    assert (left["status"], left["cut_off"], left["done"], left["error"]) == (499, True, "abort", None)
    assert left["model"] == "helper:latest"
    assert "secret" not in path.read_text()


def test_keys_have_names(models: Path, tmp_path: Path) -> None:
    keys = {"api_keys": ("hers", "his"), "admin_keys": ("theirs",)}
    with logging_to(tmp_path / "log", models, Script(), **keys) as server:
        server.get("/api/tags", Authorization="Bearer his")
        server.get("/api/tags", **{"X-Api-Key": "theirs"})
        server.get("/api/tags", Authorization="Bearer nobody's")
        server.post("/api/pull", {}, Authorization="Bearer hers")
        found = lines(tmp_path / "log", 4)
    assert [(line["key"], line["status"]) for line in found] == [
        *(("api-2", 200), ("admin-1", 200), (None, 401), ("api-1", 403)),
    ]
    text = (tmp_path / "log").read_text()
    assert not any(key in text for key in ("hers", "his", "theirs", "nobody's"))


@pytest.mark.parametrize(("given", "is_kept"), [("a-1:b/c=", True), ("x" * 128, True), ("x" * 129, False)])
def test_the_client_may_name_its_request(server: Running, given: str, is_kept: bool) -> None:
    told = server.get("/api/version", **{"X-Request-Id": given}).headers["x-request-id"]
    assert (told == given) == is_kept
    assert is_kept or len(told) == 32


@pytest.mark.parametrize("given", ["a b", 'a"b', "a\x1b[2J", "é", ""])
def test_a_hostile_id_is_replaced(server: Running, given: str) -> None:
    told = server.ask("GET", "/api/version", headers={"X-Request-Id": given}).headers["x-request-id"]
    assert len(told) == 32


def test_hostile_paths_are_escaped_and_bounded(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(path, models, Script()) as server:
        server.get('/x%1b]0;t%07%0a{"forged":1}%e2%80%a8%22' + "y" * 5000)
        (line,) = lines(path, 1)
    assert line["path"].startswith('/x\x1b]0;t\x07\n{"forged":1}\u2028"yyy')
    assert len(line["path"]) == 200
    text = path.read_bytes()
    assert text.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in text[:-1])


def test_requests_of_a_batch_belong_to_no_request_over_http() -> None:
    """Otherwise the request that began a batch would collect the data of thousands of others."""
    found: list[Exchange | None] = []

    async def note(request: Request) -> Response:
        found.append(EXCHANGE.get())
        return JSONResponse({})

    async def asked() -> None:
        exchange = Exchange("a")
        EXCHANGE.set(exchange)
        await InProcess(Starlette(routes=[Route("/", note, methods=["POST"])]), "batch")("/", {})
        assert EXCHANGE.get() is exchange

    asyncio.run(asked())
    assert found == [None]


class Answering:
    """An application that always answers 200."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Response("fine")(scope, receive, send)


def ask(file: LogFile) -> int:
    """Send a request through the access log, and return the status."""
    found = []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        found.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("1.2.3.4", 5)}
    asyncio.run(Exchanges(Answering(), [AccessLog(file)])(scope, receive, send))
    return int(found[0]["status"])


def test_a_file_that_cannot_be_written_fails_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "away"
    file = LogFile(str(folder / "log"))
    with caplog.at_level(logging.WARNING, "chaski.server.http.log_file"), file:
        for _ in range(3):
            assert ask(file) == 200
        wait_until(lambda: file._lost == 3)
        folder.mkdir()
        assert ask(file) == 200
        assert len(lines(folder / "log", 1)) == 1
    first, again = [record.getMessage() for record in caplog.records]
    assert "cannot be written: No such file or directory" in first
    assert "can be written again; about 3 lines are lost" in again


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
def test_a_full_disk_fails_no_request() -> None:
    with LogFile("/dev/full") as file:
        assert ask(file) == 200
        wait_until(lambda: file._lost == 1)


def test_lines_that_wait_too_long_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")  # a pipe without a reader
    monkeypatch.setattr("chaski.server.http.log_file._MAX_WAITING", 2)
    monkeypatch.setattr("chaski.server.http.log_file._MAX_TOGETHER", 1)
    monkeypatch.setattr("chaski.server.http.log_file._PATIENCE", 0.05)
    file = LogFile(str(tmp_path / "pipe"))
    with file:
        for _ in range(9):
            assert ask(file) == 200
        assert file._lost >= 6


def test_a_file_that_is_moved_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LogFile(str(path)) as file:
        file.write(b"{}\n")
        lines(path, 1)
        path.rename(tmp_path / "log.1")
        file.write(b"[]\n")
        assert lines(path, 1) == [[]]
    assert lines(tmp_path / "log.1", 1) == [{}]


def test_the_setting_is_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match=r"CHASKI_ACCESS_LOG is .* which cannot be written: Is a directory"):
        Settings.of(Environment(access_log=str(tmp_path)))
    assert Settings.of(Environment(access_log=str(tmp_path / "log"))).access_log == str(tmp_path / "log")
    assert Settings.of(Environment(access_log="-")).access_log == STANDARD_ERROR
    with LogFile(STANDARD_ERROR) as file:
        file.write(b"{}\n")
    assert capfd.readouterr().err == "{}\n"
