"""Unauthenticated connections end in time and do not block others."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack, closing, suppress
from typing import Protocol

import pytest

from chaski.cluster import links as cluster_links
from chaski.cluster_key import client_context
from chaski.ml.sharded import links as member_links
from chaski.strangers import Strangers

KEY = b"k" * 32


class _Door(Protocol):
    port: int

    def close(self) -> None: ...

    def knock(self) -> None: ...


class _Member:
    def __init__(self) -> None:
        self._listener = member_links.Listener("127.0.0.1", 0, KEY, lambda end: end.close())
        self.port = self._listener.port

    def close(self) -> None:
        self._listener.close()

    def knock(self) -> None:
        member_links.connect("127.0.0.1", self.port, KEY).close()


class _Replica:
    def __init__(self) -> None:
        self._listener = cluster_links.Listener("127.0.0.1", KEY, lambda end: end.close())
        self.port = self._listener.address[1]

    def close(self) -> None:
        self._listener.close()

    def knock(self) -> None:
        connection, _ = cluster_links.connect(("127.0.0.1", self.port), KEY)
        connection.close()


DOORS = (_Member, _Replica)


@pytest.mark.parametrize("door_type", DOORS)
def test_strangers_keep_nobody_out(door_type: type[_Door]) -> None:
    """There are far more than may wait, before and after the TLS handshake."""
    strangers: list[socket.socket] = []
    with closing(door_type()) as door, ExitStack() as stack:
        for number in range(150):
            stranger = socket.create_connection(("127.0.0.1", door.port), timeout=10)
            with suppress(OSError):
                if number % 10 == 0:
                    stranger = client_context().wrap_socket(stranger)
            stack.enter_context(closing(stranger))
            strangers.append(stranger)
        started = time.monotonic()
        door.knock()
        assert time.monotonic() - started < 4
        strangers[1].settimeout(3)  # before its own time is over
        with suppress(ConnectionResetError):
            assert strangers[1].recv(1) == b""


@pytest.mark.long
@pytest.mark.parametrize("door_type", DOORS)
def test_single_bytes_do_not_extend_the_time(door_type: type[_Door]) -> None:
    """A number of 32 bytes arrives in 32 pieces, each well within five seconds."""
    with closing(door_type()) as door:
        plain = socket.create_connection(("127.0.0.1", door.port), timeout=10)
        with client_context().wrap_socket(plain) as stranger:
            started = time.monotonic()
            stranger.settimeout(0.4)
            for _ in range(32):
                try:
                    stranger.sendall(b"a")
                    assert stranger.recv(1) == b""
                    break
                except (TimeoutError, ssl.SSLWantReadError):
                    continue
                except OSError:
                    break
            assert time.monotonic() - started < 8


def test_the_largest_crowd_gives_way() -> None:
    strangers, closed = Strangers(3), list[str]()
    with ExitStack() as stack:
        for name in ("a1", "b1", "b2", "b3", "b4", "c1"):
            stack.enter_context(strangers.enter(name[0], lambda name=name: closed.append(name)))  # type: ignore[misc]
    assert closed == ["b1", "b2", "b3"]
