"""Frames on a socket: only complete frames arrive, in order."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chaski.chat.events import Text
from chaski.errors import OptionError, WorkerError
from chaski.runner.channels.worker import link as link_module
from chaski.runner.channels.worker.codec import Cancel, decode, encode
from chaski.runner.channels.worker.link import MAX_FRAME, Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    """Return a link, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    link = Link(ours)
    yield link, theirs
    link.close()
    theirs.close()


def frame(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def test_messages_come_in_order_however_they_are_cut(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    messages = [Text("x" * (number * 37 % 500), (number,)) for number in range(200)]
    data = b"".join(frame(encode(number, message)) for number, message in enumerate(messages))

    def send() -> None:
        for begin in range(0, len(data), 13):
            other.sendall(data[begin : begin + 13])
        other.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    received: list[Any] = []
    while found := link.receive():
        received += map(decode, found)
    assert received == list(enumerate(messages))
    sender.join()


def test_what_is_queued_goes_in_one_piece(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    for number in range(3):
        link.send(encode(number, Cancel()))
    link.flush()
    assert other.recv(1 << 16) == b"".join(frame(encode(number, Cancel())) for number in range(3))


def test_what_came_together_is_received_together(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.sendall(b"".join(frame(encode(number, Text("a"))) for number in range(5)))
    assert list(map(decode, link.receive())) == [(number, Text("a")) for number in range(5)]


def test_a_sender_that_must_not_wait_keeps_the_rest(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    messages = [Text("x" * 100_000, (number,)) for number in range(50)]
    for number, message in enumerate(messages):
        link.send(encode(number, message))
    assert not link.flush_some(), "5 MB are more than the socket takes"
    assert not link.flush_some()
    link.send(encode(50, Cancel()))
    sender = threading.Thread(target=link.flush)
    sender.start()
    reader = Link(other)
    received: list[Any] = []
    while len(received) < 51:
        assert not link.flush_some() or not sender.is_alive(), "another thread is sending"
        received += map(decode, reader.receive())
    assert received == [*enumerate(messages), (50, Cancel())]
    sender.join()
    assert link.flush_some()


@pytest.mark.parametrize("size", [1, 3, 4, 5, 20])
def test_a_message_that_is_cut_off_is_not_delivered(ends: tuple[Link, socket.socket], size: int) -> None:
    link, other = ends
    other.sendall(frame(encode(1, Cancel())) + frame(encode(2, Text("a text, and more of it")))[:size])
    other.close()
    assert list(map(decode, link.receive())) == [(1, Cancel())]
    assert not link.receive()


def test_a_frame_of_any_length_is_not_believed(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.sendall(struct.pack("<I", MAX_FRAME + 1))
    with pytest.raises(WorkerError, match=f"{MAX_FRAME + 1} bytes was announced"):
        link.receive()


def test_a_message_that_is_too_large_is_not_sent(
    ends: tuple[Link, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = ends
    monkeypatch.setattr(link_module, "MAX_FRAME", 100)
    with pytest.raises(OptionError, match="too large; the limit is 100"):
        link.send(encode(1, Text("x" * 100)))
    link.send(encode(2, Cancel()))
    link.flush()
    assert other.recv(100) == frame(encode(2, Cancel()))


def test_the_other_end_is_gone(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.close()
    for number in range(3):
        link.send(encode(number, Cancel()))
        link.flush()
    assert not link.receive()


def test_shutting_down_ends_a_receive_that_waits(ends: tuple[Link, socket.socket]) -> None:
    link, _ = ends
    threading.Timer(0.05, link.shutdown).start()
    assert not link.receive()
