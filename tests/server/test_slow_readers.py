"""Clients that do not read their answers are disconnected, but slow readers are not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from chaski.server.network import arrivals
from chaski.server.network.connections import Connection, ServerConfig
from chaski.server.network.readers import Patience, admit
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running, wait_until

_WAIT = 0.6
_SIZE = 1 << 20
_WHOLE = 60_000
"""Bytes of an answer that the server is done with before a client with a small buffer has them all."""


def stingy(port: int, data: bytes) -> socket.socket:
    """Connect a client that accepts only as much as its small buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    connection.sendall(data)
    return connection


def is_cut(connection: socket.socket, size: int) -> bool:
    """Read to the end; return whether fewer bytes than this arrived."""
    count = 0
    try:
        while piece := connection.recv(1 << 20):
            count += len(piece)
    except ConnectionResetError:
        return True
    return count < size


@contextmanager
def serving(is_admitted: bool, patience: float, answer_patience: float, most: int = 100) -> Iterator[int]:
    """Serve a megabyte in pieces to clients with and without access; yield the port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if is_admitted and scope["path"] != "/web":
            admit(scope)
        while scope["method"] == "POST" and (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/whole":
            await send({"type": "http.response.body", "body": bytes(_WHOLE)})
            return
        for _ in range(0 if scope["path"] == "/short" else _SIZE >> 12):
            await send({"type": "http.response.body", "body": bytes(4096), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = ServerConfig(
        app,
        http=Connection,
        header_timeout=5.0,
        max_connections=most,
        patience=Patience(patience, 1 << 20),
        answer_patience=Patience(answer_patience),
        log_config=None,
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(20)


LONG = b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAGE = LONG.replace(b"/long", b"/web")
BODY = b"POST /short HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\na"
SHORT = b"GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("is_admitted", [False, True])
def test_who_does_not_read_is_let_go(is_admitted: bool) -> None:
    with serving(is_admitted, _WAIT, _WAIT) as port, closing(stingy(port, LONG)) as connection:
        time.sleep(3)
        assert is_cut(connection, _SIZE)


@pytest.mark.long
def test_who_reads_an_answer_slowly_is_not() -> None:
    """It reads for far longer than the limit for reading nothing."""
    with serving(True, 0.1, 1.5) as port, closing(stingy(port, LONG)) as connection:
        start, count = time.monotonic(), 0
        while time.monotonic() < start + 4:
            count += len(connection.recv(2000))
            time.sleep(0.05)
        while piece := connection.recv(1 << 16):
            count += len(piece)
            if count > _SIZE:  # with the frames of chunks
                break
        assert count > _SIZE


@pytest.mark.long
def test_who_drips_without_being_admitted_is_let_go() -> None:
    with serving(False, _WAIT, 30.0) as port, closing(stingy(port, LONG)) as connection:
        start = time.monotonic()
        while time.monotonic() < start + 4:
            try:
                connection.recv(1)
            except ConnectionResetError:
                break
            time.sleep(0.05)
        assert is_cut(connection, _SIZE)


def test_who_reads_slowest_makes_room() -> None:
    """There are more idle readers than connections, with hours of time: others are served soon."""
    most = 10
    with serving(True, 1e4, 1e4, most) as port, ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(closing(stingy(port, LONG)))
        for _ in range(2 * most):
            wait_until(lambda: is_answered(port))
            stack.enter_context(closing(stingy(port, LONG)))


def is_whole(connection: socket.socket) -> bool:
    """Read the whole answer; return whether it arrived."""
    count = 0
    try:
        while count <= _SIZE and (piece := connection.recv(1 << 16)):  # with the frames of chunks
            count += len(piece)
    except ConnectionResetError:
        return False
    return count > _SIZE


def is_answered(port: int) -> bool:
    with closing(stingy(port, SHORT)) as connection:
        return b" 200 " in connection.recv(100)


def test_the_rest_of_an_answer_is_no_idle_connection() -> None:
    first_request = b"GET /whole HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(True, 1e4, 1e4, most=1) as port, closing(stingy(port, first_request)) as first:
        count = len(first.recv(1))
        with closing(stingy(port, SHORT)) as second:
            assert second.recv(100).startswith(b"HTTP/1.1 503 ")
        while count < _WHOLE and (piece := first.recv(1 << 16)):
            count += len(piece)
        assert count >= _WHOLE


def test_who_sends_slowest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more clients that send a byte of their bodies than connections."""
    monkeypatch.setattr(arrivals, "_GRACE_SECONDS", 0.2)
    most = 5
    with serving(True, 1e4, 1e4, most) as port, ExitStack() as stack:
        for _ in range(2):
            for _ in range(most):
                stack.enter_context(closing(stingy(port, BODY)))
            wait_until(lambda: is_answered(port))


def test_who_has_no_key_makes_room_first() -> None:
    """The slowest reader of a page file is disconnected, although others have waited longer."""
    with serving(True, 1e4, 1e4, 4) as port, ExitStack() as stack:
        answers = [stack.enter_context(closing(stingy(port, LONG))) for _ in range(2)]
        time.sleep(0.5)
        page = stack.enter_context(closing(stingy(port, PAGE)))
        answers.append(stack.enter_context(closing(stingy(port, LONG))))
        time.sleep(2)
        assert is_answered(port)
        assert is_cut(page, _SIZE)
        assert all(is_whole(each) for each in answers)


@pytest.mark.long
def test_files_of_the_page_that_nobody_reads(models: Path) -> None:
    """They need no key, so any client may request them; more do than there are connections."""
    settings = Settings(address=SOMEWHERE, body_timeout=_WAIT, max_connections=40, api_keys=("secret",))
    with running(settings, models) as server, ExitStack() as stack:
        page = server.get("/", Accept="text/html").body.decode()
        name = page.split('src="/web/')[1].split('"')[0]
        asking = f"GET /web/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        unread = [stack.enter_context(closing(stingy(server.port, asking * 3))) for _ in range(60)]
        wait_until(lambda: _is_served(server))
        size = 3 * len(server.get(f"/web/{name}").body)
        time.sleep(4)
        assert all(is_cut(each, size) for each in unread)


def _is_served(server: Running) -> bool:
    try:
        return server.get("/api/tags", Authorization="Bearer secret").status == 200
    except OSError:
        return False
