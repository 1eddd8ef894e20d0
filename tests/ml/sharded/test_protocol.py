"""The protocol between members, and their reaction to invalid messages."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import chaski
from chaski.errors import ClusterError
from chaski.ml import CPUOptions, NodesOptions, open_backend
from chaski.ml.backend import Backend, BackendOptions, CacheConfig
from chaski.ml.sharded import encoding
from chaski.ml.sharded.exchange import Exchange
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.links import connect
from chaski.ml.sharded.serving import MemberServer
from chaski.ml.sharded.session import Session
from chaski.ml.sharded.sessions import Sessions
from tests.ml.sharded.members import KEY, Nodes, open_cpu


@pytest.fixture
def server() -> Iterator[MemberServer]:
    with closing(MemberServer("127.0.0.1", 0, KEY, open_cpu)) as running:
        yield running


def opened(server: MemberServer, **hello: object) -> Frames:
    frames = Frames(connect("127.0.0.1", server.port, KEY))
    frames.send(hello)
    return frames


def test_a_request_that_nobody_knows(server: MemberServer) -> None:
    requests = opened(server, kind="requests", session="a")
    replies = opened(server, kind="replies", session="a")
    requests.send({"kind": "nonsense", "id": 1})
    requests.send({"kind": "memory", "id": 2, "backend": 5})
    fields, _ = replies.receive()
    assert fields == {"id": 1, "error": "ClusterError", "message": "'nonsense' is not a request"}
    fields, _ = replies.receive()
    assert (fields["id"], fields["error"]) == (2, "ClusterError")
    twice = opened(server, kind="requests", session="a")
    with pytest.raises((EOFError, OSError)):
        twice.receive()
    requests.close()
    assert server.wait_idle(10)
    replies.close()
    twice.close()


def test_what_belongs_to_no_session(server: MemberServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.ml.sharded.sessions.PATIENCE", 0.1)
    for hello in ({"kind": "replies", "session": "b"}, {"session": "b"}, {"kind": "values"}):
        frames = opened(server, **hello)
        with pytest.raises((EOFError, OSError)):
            frames.receive()
        frames.close()
    assert server.num_sessions == 0


def test_a_first_message_that_comes_by_single_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has one deadline in total, though each single byte arrives in time."""
    monkeypatch.setattr("chaski.ml.sharded.sessions.PATIENCE", 0.5)
    ours, theirs = socket.socketpair()
    sessions = Sessions(Mock(), Mock())
    taking = threading.Thread(target=sessions.take, args=(Frames(ours),), daemon=True)
    taking.start()
    text = json.dumps([{"kind": "requests", "session": "a", "pad": "x" * 500}, []]).encode()
    with closing(theirs):
        for byte in len(text).to_bytes(4, "little") + text:
            try:
                theirs.send(bytes([byte]))
            except OSError:
                break  # it was closed
            taking.join(0.05)
            if not taking.is_alive():
                break
        else:
            pytest.fail("the whole message was taken")
    assert len(sessions) == 0


def test_a_member_that_stops_to_read_is_lost(nodes: Nodes) -> None:
    addresses = tuple(("127.0.0.1", node.port) for node in nodes.servers[:2])
    backend = open_backend("sharded", NodesOptions(addresses, key_file=str(nodes.key_file)))
    member = backend._members[1]  # type: ignore[attr-defined]

    def fail(*arguments: object) -> None:
        raise OSError("it does not read")

    member._requests.send = fail
    member.tell_alive()
    with pytest.raises(ClusterError, match=rf"{member.name} is lost: it does not read"):
        backend.devices()
    backend.close()


def test_members_that_store_in_another_way(nodes: Nodes) -> None:
    def open_other(options: BackendOptions) -> Backend:
        backend = open_backend("cpu", options, CPUOptions(threads=1))
        backend.cache_config = CacheConfig(alignment=8)  # type: ignore[misc]
        return backend

    with closing(MemberServer("127.0.0.1", 0, KEY, open_other)) as other:
        addresses = (("127.0.0.1", nodes.servers[0].port), ("127.0.0.1", other.port))
        with pytest.raises(ClusterError, match="stores keys and values in a different way"):
            open_backend("sharded", NodesOptions(addresses, key_file=str(nodes.key_file)))


def test_members_that_do_not_reach_each_other(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.ml.sharded.session.PATIENCE", 0.1)
    monkeypatch.setattr(Exchange, "wait_connected", lambda self, members, seconds: False)
    addresses = tuple(("127.0.0.1", node.port) for node in nodes.servers[:2])
    with pytest.raises(ClusterError, match="each node must reach all nodes before"):
        open_backend("sharded", NodesOptions(addresses, key_file=str(nodes.key_file)))


def nothing(descriptor: int) -> None:
    """Do nothing during waits for a value."""


def test_a_thread_reads_what_comes_while_others_compute() -> None:
    """The thread receives more than the system buffers, and keeps the next run's values."""
    ours, theirs = socket.socketpair()
    one, other = Exchange(), Exchange()
    one.send_to(1, Frames(ours).values())
    other.receive_from(0, Frames(theirs).values())
    rows = np.ones((64, 2000), np.float32)
    for turn in range(3):
        many, few = 2 * turn, 2 * turn + 1
        one.begin(many)
        other.begin(many, has_many_rows=True)
        for part in range(20):
            one.send(1, 7, part, rows * part)
        target = one._targets[1]
        while target._sent < target._left:  # no reader has requested any of them
            time.sleep(0.001)
        for part in reversed(range(20)):
            np.testing.assert_array_equal(other.take(0, 7, part, nothing), rows * part)
        one.begin(few)
        other.begin(few)
        awaited: list[int] = []
        for value in range(3):
            one.send(1, value, 0, rows[:1] * value)
            np.testing.assert_array_equal(other.take(0, value, 0, awaited.append), rows[:1] * value)
        assert not other._sources[0]._is_reading
    other.begin(9, has_many_rows=True)
    one.close()
    with pytest.raises(ClusterError, match="the connection to another node ended"):
        other.take(0, 7, 0, nothing)
    other.close()


def test_values_of_members() -> None:
    """It tests large and small values, values of earlier runs, and a closed connection."""
    ours, theirs = socket.socketpair()
    one, other = Exchange(), Exchange()
    one.send_to(1, Frames(ours).values())
    other.receive_from(0, Frames(theirs).values())
    small, large = np.ones((2, 3), np.float32), np.ones((300, 1000), np.float32)
    for run in (4, 5):
        one.begin(run)
        one.send(1, 7, 0, small * run)
        one.send(1, 8, 0, large * run)
    other.begin(5)
    np.testing.assert_array_equal(other.take(0, 8, 0, nothing), large * 5)
    np.testing.assert_array_equal(other.take(0, 7, 0, nothing), small * 5)
    one.begin(6)
    one.send(1, 7, 0, small)  # before the awaited value
    one.begin(5)
    one.send(1, 9, 0, small)
    np.testing.assert_array_equal(other.take(0, 9, 0, nothing), small)
    one.give_up(5)
    with pytest.raises(ClusterError, match="could not compute this batch"):
        other.take(0, 9, 0, nothing)
    other.begin(6)
    np.testing.assert_array_equal(other.take(0, 7, 0, nothing), small)
    ours.send(b"\xff" * 1000)  # more than any head
    with pytest.raises(ClusterError, match="announces"):
        other.take(0, 9, 0, nothing)
    other.close()
    with pytest.raises(ClusterError, match="the connection to another node ended"):
        other.take(0, 9, 0, nothing)
    with pytest.raises(ClusterError, match="the connection to another node ended"):
        one.send(1, 7, 0, small)
    one.send(1, 8, 0, large)
    one.give_up(6)
    one.close()


def test_a_tensor_outside_of_its_file(nodes: Nodes) -> None:
    content = np.zeros(100, np.uint8)
    fields = {"name": "a", "shape": [5, 4], "type": "F32", "offset": 20, "strides": [16]}
    assert encoding.decode_tensor(fields, nodes.key_file, content).data.shape == (5, 4, 4)
    for wrong in ({"offset": 21}, {"offset": -1}, {"strides": [17]}, {"shape": [0, 4]}):
        with pytest.raises(ClusterError, match="outside the file"):
            encoding.decode_tensor(fields | wrong, nodes.key_file, content)


def test_members_keep_no_results_that_nobody_has(
    nodes: Nodes, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    launch = Session._launch

    def counted(self: Session, fields: Any, arrays: Any) -> Any:
        reply = launch(self, fields, arrays)
        kept.append(len(self._results))
        return reply

    monkeypatch.setattr(Session, "_launch", counted)
    nodes.use(monkeypatch, "layers", 2)
    with chaski.load(tiny_llama) as llm:
        llm.generate("once", num_predict=40, temperature=0, ignore_eos=True)
    assert len(kept) >= 80
    assert max(kept) <= 3


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '[{}, [["<f4", [60000000000]]]]', "[[], []]", "[{}, 5]", "{}", "nonsense"],
    ids=lambda text: str(text)[:20],
)
def test_a_message_that_cannot_be_read_is_a_cluster_error(text: str) -> None:
    """This includes messages whose nesting or announced arrays exceed the memory of this process."""
    sender, receiver = socket.socketpair()
    with closing(sender), closing(Frames(receiver)) as frames:
        sender.sendall(struct.pack("<I", len(text)) + text.encode())
        with pytest.raises(ClusterError):
            frames.receive()
