"""A failure on a node, or between nodes, gives one clear error that names the node."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from msgspec.structs import replace

import chaski
from chaski.errors import (
    ClusterError,
    ModelError,
    ModelNotFoundError,
    OptionError,
    OutOfMemoryError,
    UnsupportedError,
)
from chaski.ml import BackendOptions, CPUOptions, NodesOptions, open_backend, ops, serve_member
from chaski.ml.graph import Dim, DType, Graph
from chaski.ml.sharded.files import SameFile
from chaski.ml.sharded.frames import Frames
from chaski.ml.sharded.serving import MemberServer, listening_address
from tests.ml.sharded.members import KEY, Nodes, open_cpu, running_nodes
from tests.ml.sharded.test_operations import opened, uniform, weights_of, write
from tests.tiny_llama import write_tiny_llama


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Run two members that a test may end."""
    with running_nodes(tmp_path, 2) as running:
        yield running


def test_a_lost_node_is_named(own_nodes: Nodes, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_nodes.use(monkeypatch, "layers", 2)
    with chaski.load(tiny_llama, prompt_cache=False) as llm:
        stream = llm.stream("once", num_predict=200, temperature=0, ignore_eos=True)
        next(stream)
        own_nodes.servers[1].close()
        port = own_nodes.servers[1].port
        with pytest.raises(ClusterError, match=rf"node 127.0.0.1:{port} is lost: .*ended the connection"):
            list(stream)
        with pytest.raises(ClusterError, match="is lost"):
            llm.generate("once", num_predict=2)


@pytest.mark.long
def test_a_worker_ends_with_a_node_and_the_next_one_connects_anew(
    own_nodes: Nodes, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_nodes.use(monkeypatch, "rows", 2)
    lost = own_nodes.servers[1]
    with chaski.Worker(tiny_llama) as worker:
        expected = worker.generate("once", num_predict=8, temperature=0).text
        first = worker.pid
        lost.close()
        with pytest.raises(ClusterError, match=rf"127.0.0.1:{lost.port} is lost"):
            worker.generate("once", num_predict=8, temperature=0)
        with pytest.raises(ClusterError, match=rf"node 127.0.0.1:{lost.port} cannot be reached"):
            worker.generate("once", num_predict=8, temperature=0)
        again = MemberServer("127.0.0.1", lost.port, KEY, open_cpu)
        try:
            assert worker.generate("once", num_predict=8, temperature=0).text == expected
            assert worker.pid != first
        finally:
            worker.close()
            again.close()


def test_a_node_that_stands_still_is_lost(
    own_nodes: Nodes, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaski.ml.sharded.session.ALIVE", 60.0)
    monkeypatch.setattr("chaski.ml.sharded.head.SILENCE", 0.6)
    stopped, computing = threading.Event(), threading.Event()
    own_nodes.use(monkeypatch, "layers", 2)
    with chaski.load(tiny_llama, prompt_cache=False) as llm:

        def stand_still(self: object, *arguments: object) -> object:
            computing.set()
            stopped.wait(20)
            raise ValueError("too late")

        monkeypatch.setattr("chaski.ml.sharded.member_plan.MemberPlan.run", stand_still)
        with pytest.raises(ClusterError, match="has sent nothing"):
            llm.generate("once", num_predict=2)
        assert computing.is_set()
        stopped.set()


def test_a_head_that_is_gone_leaves_nothing(
    own_nodes: Nodes, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_nodes.use(monkeypatch, "layers", 2)
    monkeypatch.setattr("chaski.ml.sharded.session.ALIVE", 0.05)
    with chaski.load(tiny_llama) as llm:
        llm.logits([1, 2])
        assert [server.num_sessions for server in own_nodes.servers] == [1, 1]
        sleep(0.2)  # heartbeats go both ways
        llm.logits([1, 2])
    for server in own_nodes.servers:
        assert server.wait_idle(10)


def test_wrong_indices_are_told_and_the_next_batch_is_computed(nodes: Nodes, tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.gguf", token_embd=uniform(16, 32), blk__0__a=uniform(16, 32), blk__1__b=uniform(8, 16)
    )
    for split in ("layers", "rows"):
        backend = opened(nodes, split, 2)
        w = weights_of(backend, path, {"token_embd": 0, "blk.0.a": 0, "blk.1.b": 0})
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", 4),), DType.I32)
        x = ops.linear(ops.embedding(ids, w["token_embd"]), w["blk.0.a"])
        graph.output("y", ops.linear(x, w["blk.1.b"]))
        plan = backend.compile(graph)
        backend.load(lambda share: None)
        failed = plan.launch({"ids": np.array([16], np.int32)})
        for _ in range(2):
            with pytest.raises(ValueError, match=r"node 127.0.0.1:\d+: "):
                failed.rows("y")
        assert plan.launch({"ids": np.array([15], np.int32)}).rows("y").shape == (1, 8)
        with pytest.raises(ValueError, match="the inputs are ids"):
            plan.launch({})
        with pytest.raises(ValueError, match="5 rows; it needs tokens = 5, at most 4"):
            plan.launch({"ids": np.zeros(5, np.int32)})
        first = plan.launch({"ids": np.array([1, 2], np.int32)})
        second = plan.launch({"ids": np.array([2], np.int32)})
        np.testing.assert_array_equal(first.rows("y", 1), second.rows("y"))
        backend.close()
        backend.close()


def test_a_wrong_key_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    other.write_bytes(b"this is another key than theirs is.")
    other.chmod(0o600)
    address = ("127.0.0.1", nodes.servers[0].port)
    with pytest.raises(ClusterError, match="does not know the key"):
        open_backend("sharded", NodesOptions((address,), key_file=str(other)))


def test_strangers_are_sent_away(nodes: Nodes) -> None:
    with socket.create_connection(("127.0.0.1", nodes.servers[0].port)) as stranger:
        stranger.settimeout(10)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        try:
            while stranger.recv(4096):
                continue
        except ConnectionResetError:
            pass


def test_nobody_listens(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match="cannot listen at"):
            MemberServer("127.0.0.1", port, KEY, open_cpu)
    options = NodesOptions((("127.0.0.1", port),), key_file=str(nodes.key_file))
    with pytest.raises(ClusterError, match=rf"node 127.0.0.1:{port} cannot be reached"):
        open_backend("sharded", options)


def test_another_file_is_refused(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    nodes.use(monkeypatch, "layers", 2)
    own = SameFile.of(path)
    monkeypatch.setattr(SameFile, "of", lambda path: replace(own, fingerprint="0" * 64))
    with pytest.raises(ModelError, match=r"node 127.0.0.1:\d+: .*tiny.gguf differs from the file"):
        chaski.load(path)
    monkeypatch.setattr(SameFile, "of", lambda path: replace(own, path="/nowhere/tiny.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"node 127.0.0.1:\d+: /nowhere/tiny.gguf does not exist"):
        chaski.load(path)


def test_files_are_found_by_their_names(tmp_path: Path) -> None:
    path, folder = tmp_path / "a.gguf", tmp_path / "models"
    folder.mkdir()
    path.write_bytes(os.urandom(3 << 20))
    own = SameFile.of(path)
    moved = replace(own, path="/nowhere/a.gguf")
    with pytest.raises(ModelNotFoundError):
        moved.find([folder])
    (folder / "a.gguf").write_bytes(path.read_bytes())
    assert moved.find([folder]) == folder / "a.gguf"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    (folder / "a.gguf").write_bytes(changed)
    with pytest.raises(ModelError, match="differs from the file"):
        moved.find([folder])


def test_too_little_memory_is_told_before_anything_is_read(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    nodes.use(monkeypatch, "layers", 2)
    monkeypatch.setattr("chaski.ml.cpu.backend.available_memory", lambda: 150_000)
    with pytest.raises(OutOfMemoryError) as told:
        chaski.load(path)
    for server in nodes.servers[:2]:
        assert f"on 127.0.0.1:{server.port}, but 0.000 GB" in str(told.value)
    monkeypatch.undo()
    path = write(
        tmp_path / "a.gguf", token_embd=uniform(16, 32), blk__0__a=uniform(500, 500), blk__1__b=uniform(8, 16)
    )
    backend = opened(nodes, "layers", 2)
    weights_of(backend, path, {})
    monkeypatch.setattr("chaski.ml.cpu.backend.available_memory", lambda: 150_000)
    with pytest.raises(OutOfMemoryError, match=rf"on 127.0.0.1:{nodes.servers[0].port}, but .*name more"):
        backend.load(lambda share: None)
    backend.close()


def test_fewer_layers_than_nodes(nodes: Nodes, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.use(monkeypatch, "layers", 3)
    with pytest.raises(OptionError, match="2 layers cannot be split over 3 nodes"):
        chaski.load(tiny_llama)


def test_nodes_that_do_not_fit_together(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_reference(options: BackendOptions) -> object:
        return open_backend("reference", options)

    other = MemberServer("127.0.0.1", 0, KEY, open_reference)
    addresses = tuple(("127.0.0.1", port) for port in (nodes.servers[0].port, other.port))
    options = NodesOptions(addresses, key_file=str(nodes.key_file))
    with pytest.raises(ClusterError, match=rf"node 127.0.0.1:{other.port} computes by the rule reference 1"):
        open_backend("sharded", options)
    monkeypatch.setattr("chaski.ml.sharded.head.__version__", "0.0.1")
    with pytest.raises(ClusterError, match=r"it runs chaski .*, and this machine runs 0.0.1"):
        open_backend("sharded", options)
    other.close()


def test_options(nodes: Nodes, tmp_path: Path) -> None:
    address = (("127.0.0.1", nodes.servers[0].port),)
    key = tmp_path / "some.key"
    with pytest.raises(OptionError, match="no nodes are named"):
        open_backend("sharded")
    with pytest.raises(OptionError, match="by layers or rows"):
        open_backend("sharded", NodesOptions(address, "columns"))
    with pytest.raises(OptionError, match="no key is named"):
        open_backend("sharded", NodesOptions(address))
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        open_backend("sharded", NodesOptions(address, key_file=str(key)))
    key.write_text("short")
    with pytest.raises(OptionError, match="has 5 characters"):
        open_backend("sharded", NodesOptions(address, key_file=str(key)))
    key.write_text("long enough, and anybody can read it")
    key.chmod(0o644)
    with pytest.raises(OptionError, match="others than its owner"):
        open_backend("sharded", NodesOptions(address, key_file=str(key)))
    with pytest.raises(UnsupportedError, match="a node computes by itself"):
        serve_member("127.0.0.1:0", KEY, "sharded", [], CPUOptions())
    server = serve_member("127.0.0.1:0", KEY, "cpu", [], CPUOptions(threads=1))
    options = NodesOptions((("127.0.0.1", server.port),), "rows", key_file=str(nodes.key_file))
    open_backend("sharded", options).close()
    server.close()


def test_addresses_to_listen_at() -> None:
    assert listening_address("10.0.0.1:11500") == ("10.0.0.1", 11500)
    assert listening_address(":11500") == ("0.0.0.0", 11500)
    assert listening_address("[::1]:0") == ("::1", 0)
    for text in ("here", "10.0.0.1", "10.0.0.1:70000", "a b:1"):
        with pytest.raises(OptionError, match="not an address to listen at"):
            listening_address(text)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\x7f",
        b"\x02\x00\x00\x00{]",
        b'\x11\x00\x00\x00[{},[["|O8",[1]]]]',
        b'\x13\x00\x00\x00[{},[["<f4",[-1]]]]  ',
        b"\x02\x00\x00\x0012",
    ],
)
def test_what_is_no_message(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(sent)
        frames = Frames(ours)
        with pytest.raises(ClusterError, match="a message"):
            frames.receive()
        frames.close()


def test_messages_of_all_sizes() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Frames(ours), Frames(theirs)
    arrays = [
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.zeros((0, 7), np.float32),
        np.ones(100_000, np.float32),
    ]
    threading.Thread(target=sender.send, args=({"a": 1}, arrays)).start()
    fields, found = receiver.receive()
    assert fields == {"a": 1}
    for one, other in zip(arrays, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    sender.close()
    with pytest.raises(EOFError):
        receiver.receive()
    receiver.close()
