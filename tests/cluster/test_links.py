"""Connections of a cluster: accepted peers, and transferred data."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from chaski.cluster.links import Listener, connect, new_key
from chaski.cluster.peer import Peer
from chaski.cluster_key import server_context
from chaski.errors import UnsupportedError, WorkerError
from chaski.runner.channels.messages import Detokenize
from chaski.runner.channels.worker.agreement import Kind, Messages

KEY = new_key()


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Run a listener that returns its input in capitals."""

    def echo(end: socket.socket) -> None:
        with end:
            while data := end.recv(1 << 16):
                end.sendall(data.upper())

    found = Listener("127.0.0.1", KEY, echo)
    yield found
    found.close()


def test_bytes_go_both_ways_in_their_order(listener: Listener) -> None:
    data = bytes(97 + i * i % 26 for i in range(1 << 20))
    with closing(connect(listener.address, KEY)[0]) as end:
        threading.Thread(target=end.sendall, args=(data,)).start()
        got = bytearray()
        while len(got) < len(data):
            got += end.recv(1 << 16)
    assert bytes(got) == data.upper()


def test_nobody_without_the_key_is_listened_to(listener: Listener) -> None:
    with pytest.raises(WorkerError, match=r"does not know the key|cannot be reached"):
        connect(listener.address, new_key())
    with closing(connect(listener.address, KEY)[0]) as end:
        end.sendall(b"still there")
        assert end.recv(100) == b"STILL THERE"


def test_a_replica_that_does_not_know_the_key_is_not_asked(listener: Listener) -> None:
    stranger = Listener("127.0.0.1", new_key(), lambda end: end.close())
    with closing(stranger), pytest.raises(WorkerError, match="does not know the key"):
        connect(stranger.address, KEY)


def test_a_replica_with_other_messages_is_refused(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Messages.own()
    done = Kind(own.kinds["Done"].fields[1:], is_array=True)
    theirs = replace(own, version="0.1.9", kinds={**own.kinds, "Done": done})
    found = iter([theirs, own])
    monkeypatch.setattr(Messages, "own", lambda: next(found))
    with pytest.raises(WorkerError, match=r"Done differ; upgrade the replica first, .* 0\.1\.9"):
        connect(listener.address, KEY)


def test_an_older_replica_is_not_sent_calls_that_it_does_not_know(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Messages.own()
    found = iter([replace(own, version="0.1.9", calls=own.calls - {"Detokenize"}), own])
    monkeypatch.setattr(Messages, "own", lambda: next(found))
    peer = Peer("one", listener.address, KEY, lambda: 0)
    with pytest.raises(UnsupportedError, match=r"runs chaski 0\.1\.9, which does not know Detokenize"):
        peer.start(Detokenize((1,)), lambda reply: None)
    peer.close()


def test_one_in_between_is_noticed(listener: Listener) -> None:
    """The attacker has its own certificate and forwards all later bytes, including the proofs."""
    own = Listener("127.0.0.1", KEY, lambda end: end.close())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def pass_on(certified: ssl.SSLContext, door: socket.socket) -> None:
        outside, _ = door.accept()
        with (
            certified.wrap_socket(outside, server_side=True) as victim,
            socket.create_connection(listener.address) as plain,
            context.wrap_socket(plain) as inside,
        ):
            inside.sendall(victim.recv(32))
            victim.sendall(inside.recv(64))
            victim.recv(32)

    certified, _ = server_context()
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=pass_on, args=(certified, door), daemon=True)
        thread.start()
        with pytest.raises(WorkerError, match="does not know the key"):
            connect(door.getsockname()[:2], KEY)
        thread.join(5)
    own.close()


def test_strangers_and_noise_harm_nobody(listener: Listener) -> None:
    ends = [socket.create_connection(listener.address) for _ in range(40)]
    for end in ends[:20]:
        end.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with closing(connect(listener.address, KEY)[0]) as end:
        end.sendall(b"hello")
        assert end.recv(100) == b"HELLO"
    for each in ends:
        each.close()


def test_the_end_of_one_side_is_the_end_of_the_other(listener: Listener) -> None:
    end, _ = connect(listener.address, KEY)
    end.sendall(b"a")
    assert end.recv(10) == b"A"
    listener.close()
    assert end.recv(10) == b""
    end.close()
    with pytest.raises(WorkerError, match="cannot be reached"):
        connect(listener.address, KEY)
