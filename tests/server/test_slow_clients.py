"""Clients that stop, send slowly, or are too many: they are disconnected, and others are served."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_registry_that_hangs import hanging_registry
from tests.server.running import Running, running, wait_until

_WAIT = 0.6
_MOST = 40


@pytest.fixture(scope="module")
def brief(models: Path) -> Iterator[Running]:
    """Run a server with short timeouts and few connections."""
    settings = Settings(
        address=SOMEWHERE,
        header_timeout=_WAIT,
        body_timeout=_WAIT,
        max_connections=_MOST,
        private_registries=frozenset({"127.0.0.1"}),
    )
    with running(settings, models) as server:
        yield server


def connected(server: Running, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(data)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Return all data until the server closes."""
    found = b""
    try:
        while piece := connection.recv(1 << 16):
            found += piece
    except ConnectionResetError:
        pass
    return found


def request(path: str, body: bytes, announced: int | None = None) -> bytes:
    length = len(body) if announced is None else announced
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


HALVES = {
    "nothing": b"",
    "half a line": b"GET /api/ver",
    "half of the headers": b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n",
    "a second request": b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api/version HTTP/1.1\r\n",
    "a body that nobody reads": b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1",
}


@pytest.mark.parametrize("name", HALVES)
def test_half_a_request(brief: Running, name: str) -> None:
    start = time.monotonic()
    with closing(connected(brief, HALVES[name])) as connection:
        found = rest(connection)
    assert time.monotonic() - start < 20
    assert (b"408 Request Timeout" in found) == (name not in ("nothing", "a body that nobody reads"))
    assert (b"did not arrive in time" in found) == (b"408 Request Timeout" in found)


def test_headers_that_drip(brief: Running) -> None:
    """Each byte is in time, but all of them together are not."""
    connection = connected(brief, b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
    start = time.monotonic()
    with closing(connection):
        while time.monotonic() < start + 30:
            try:
                connection.sendall(b"a")
            except ConnectionError:
                break
            time.sleep(_WAIT / 10)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("path", ["/api/generate", "/v1/chat/completions", f"/api/blobs/sha256:{'0' * 64}"])
def test_bodies_that_stop(brief: Running, path: str) -> None:
    with closing(connected(brief, request(path, b'{"model": ', 1000))) as connection:
        found = connection.recv(1 << 16)
    assert b" 408 " in found.split(b"\r\n")[0]


def test_a_body_that_drips(brief: Running) -> None:
    with closing(connected(brief, request("/api/generate", b"{", 100_000))) as connection:
        start = time.monotonic()
        connection.settimeout(_WAIT / 20)
        found = b""
        while not found and time.monotonic() < start + 30:
            connection.sendall(b" ")
            try:
                found = connection.recv(1 << 16)
            except TimeoutError:
                continue
    assert b" 408 " in found.split(b"\r\n")[0]


def test_answers_may_take_longer(brief: Running) -> None:
    """The time limit for receiving a request does not apply to streams and whole answers."""
    options = {"num_predict": 400, "temperature": 0, "stop": [], "ignore_eos": False}
    body = {"model": "guide", "prompt": "Count.", "raw": True, "options": {**options, "num_predict": 4}}
    assert brief.post("/api/generate", body).status == 200
    with closing(connected(brief, request("/api/generate", json.dumps(body).encode()))) as connection:
        time.sleep(2 * _WAIT)
        found = connection.recv(1 << 20)
        assert b" 200 OK" in found


def test_many_half_requests_close_nobody_out(brief: Running) -> None:
    """Far more than the server accepts; other requests always work."""
    with ExitStack() as stack:
        for number in range(3 * _MOST):
            stack.enter_context(closing(connected(brief, b"GET /api/version HTTP/1.1\r\nHost:")))
            if number % 20 == 0:
                assert brief.get("/api/version").status == 200
        assert brief.get("/api/version").status == 200


def test_connections_at_work_are_not_closed(brief: Running) -> None:
    """Clients with running answers stay; one too many gets an error."""
    with ExitStack() as stack:
        for _ in range(_MOST):
            stack.enter_context(closing(connected(brief, request("/api/generate", b"{", 1000))))
        time.sleep(0.2)
        with closing(connected(brief, b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")) as another:
            assert b" 503 " in rest(another).split(b"\r\n")[0]
    wait_until(lambda: brief.get("/api/version").status == 200)


CHUNKED = b"%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begun", [b"", CHUNKED % b"POST /api/generate"], ids=["at first", "as a body"])
def test_bytes_that_are_no_http(brief: Running, begun: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with closing(connected(brief, begun)) as connection:
        time.sleep(0.1)  # the handler waits for the rest
        connection.sendall(b"\x16\x03\x01\r\n\r\n")
        found = rest(connection)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "HTTPS" in json.loads(body)["error"]
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


def test_bytes_that_are_no_http_after_an_answer(brief: Running, caplog: pytest.LogCaptureFixture) -> None:
    with closing(connected(brief, CHUNKED % b"GET /api/version")) as connection:
        while not connection.recv(1 << 16).endswith(b"}"):
            pass
        connection.sendall(b"no length\r\n")
        assert rest(connection) == b""
    assert brief.get("/api/version").status == 200
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


@pytest.mark.long
def test_uploads_that_stop_hold_up_nobody(models: Path) -> None:
    """There are more uploads than threads; each gets an error in time, and none stays in the store."""
    settings = Settings(address=SOMEWHERE, body_timeout=5.0, max_connections=400)
    blobs = models / "blobs"
    before = sorted(blobs.iterdir())
    with running(settings, models) as server, ExitStack() as stack:
        path = f"/api/blobs/sha256:{'1' * 64}"
        stalled = [
            stack.enter_context(closing(connected(server, request(path, b"x" * 3_000_000, 9_000_000))))
            for _ in range(40)
        ]
        start = time.monotonic()
        data = b"a blob"
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert server.post(f"/api/blobs/{digest}", data).status == 201
        made = server.post("/api/create", {"model": "another", "from": "helper", "system": "Hi"})
        assert made.lines[-1] == {"status": "success"}
        assert time.monotonic() - start < 4.5
        for connection in stalled:
            assert b" 408 " in connection.recv(1 << 16).split(b"\r\n")[0]
        assert server.ask("DELETE", "/api/delete", {"model": "another"}).status == 200
        (blobs / digest.replace(":", "-")).unlink()
    assert sorted(blobs.iterdir()) == before


@pytest.mark.long
def test_pulls_that_wait_do_not_hold_up_create(brief: Running) -> None:
    """All threads for registries wait for one that does not answer."""
    with hanging_registry() as host, ExitStack() as stack:
        body = {"model": f"http://{host}/a/b:c", "insecure": True}
        for _ in range(20):
            connection = connected(brief, request("/api/pull", json.dumps(body).encode()))
            stack.enter_context(closing(connection))
        made: list[int] = []
        asking = {"model": "another", "from": "helper", "system": "Hi"}
        thread = threading.Thread(target=lambda: made.append(brief.post("/api/create", asking).status))
        thread.start()
        thread.join(10)
        assert made == [200]
        assert brief.ask("DELETE", "/api/delete", {"model": "another"}).status == 200
