"""When a connection counts as too slow, with a clock of its own, and how addresses are refused."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

import httpcore2
import pytest

from chaski.errors import RegistryError
from chaski.store.http import Access, Http, SlowError, TemporaryError
from chaski.store.http import _translated as translated
from chaski.store.network import GuardedNetwork, SlowTransferError, WatchedNetwork


class Clock:
    """The time of `time.monotonic`, which only `Peer` moves."""

    def __init__(self) -> None:
        self.now = 1000.0


class Peer(httpcore2.NetworkStream):
    """A connection whose answers take as many seconds, and have as many bytes, as `script` says."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.script: list[tuple[float, int]] = []
        self.written: list[tuple[bytes, float | None]] = []
        self.timeouts: list[float | None] = []
        self.is_closed = False
        self.socket = socket.socket()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        seconds, count = self.script.pop(0)
        self.clock.now += seconds
        self.timeouts.append(timeout)
        return b"x" * min(count, max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.written.append((buffer, timeout))

    def close(self) -> None:
        self.is_closed = True
        self.socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        self.secured = server_hostname, timeout
        return self

    def get_extra_info(self, info: str) -> Any:
        return self.socket if info == "socket" else None


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Peer:
    found = Peer(Clock())
    monkeypatch.setattr(time, "monotonic", lambda: found.clock.now)
    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", lambda self, *how: found)
    return found


def opened(window: float = 10, least_rate: float = 5) -> httpcore2.NetworkStream:
    return WatchedNetwork(window, least_rate).connect_tcp("models.example", 443)


def read_all(peer: Peer, *script: tuple[float, int]) -> int:
    """Read what a fresh connection sends after a request; return the number of bytes."""
    stream = opened()
    peer.script = [*script]
    stream.write(b"GET", 3)
    count = 0
    while peer.script:
        count += len(stream.read(100, 7))
    stream.close()
    return count


@pytest.mark.parametrize(
    "script",
    [
        [(0, 1), (10, 49)],  # exactly five bytes a second
        [(100, 1), (9, 1)],  # the time before the first byte does not count
        [(0, 1), (9.9, 1), (0, 1)],  # the window has not passed
        [(0, 1), (10, 49), (9.9, 0), (0, 1)],  # each window begins anew
        [(0, 1), (10, 0)],  # the end of the answer
    ],
)
def test_transfers_that_are_fast_enough(peer: Peer, script: list[tuple[float, int]]) -> None:
    assert read_all(peer, *script) == sum(count for _, count in script)
    assert set(peer.timeouts) == {7}
    assert peer.written == [(b"GET", 3)]
    assert peer.is_closed


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([(0, 1), (10, 48)], "49 bytes came in 10 seconds"),
        ([(0, 1), (5, 1), (5.4, 1)], "3 bytes came in 10 seconds"),
        ([(0, 1), (10, 49), (10, 49)], "49 bytes came in 10 seconds"),
    ],
)
def test_transfers_that_are_too_slow(peer: Peer, script: list[tuple[float, int]], message: str) -> None:
    with pytest.raises(SlowTransferError, match=f"^{message}$"):
        read_all(peer, *script)
    peer.close()


def test_a_connection_with_tls_is_watched_too(peer: Peer) -> None:
    network = WatchedNetwork(10, 5)
    plain = network.connect_tcp("models.example", 443)
    secured = plain.start_tls(ssl.create_default_context(), "models.example", 4)
    assert peer.secured == ("models.example", 4)
    peer.script = [(0, 1), (10, 48)]
    secured.read(100)
    with pytest.raises(SlowTransferError):
        secured.read(100)
    secured.close()
    plain.close()


def test_a_request_begins_a_new_window(peer: Peer) -> None:
    stream = opened()
    peer.script = [(0, 1), (9, 1), (50, 1), (9, 1)]
    for _ in range(2):
        stream.write(b"GET")
        assert [len(stream.read(100)) for _ in range(2)] == [1, 1]
    stream.close()


def test_without_a_window_a_peer_may_be_slow(peer: Peer) -> None:
    stream = WatchedNetwork().connect_tcp("models.example", 443)
    peer.script = [(0, 1), (1e6, 1)]
    assert [len(stream.read(100)) for _ in range(2)] == [1, 1]
    stream.close()


def test_all_connections_are_interrupted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    network = WatchedNetwork()
    pairs = [socket.socketpair() for _ in range(3)]
    peers = []
    for ours, _ in pairs:
        peer = Peer(Clock())
        peer.socket.close()
        peer.socket = ours
        peers.append(peer)
    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", lambda self, host, *how: peers[int(host)])
    streams = [network.connect_tcp(str(number), 443) for number in range(3)]
    streams[0].close()
    network.interrupt()
    network.interrupt()  # once more does no harm
    assert [other.recv(1) for _, other in pairs] == [b""] * 3
    assert [peer.is_closed for peer in peers] == [True, False, False]
    for stream, (_, other) in zip(streams, pairs, strict=True):
        stream.close()
        other.close()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (SlowTransferError("3 bytes"), SlowError, "^{host} sends too slowly: 3 bytes$"),
        (httpcore2.ReadTimeout("late"), TemporaryError, "^{host} does not answer$"),
        (httpcore2.ConnectTimeout("late"), TemporaryError, "^{host} does not answer$"),
        (httpcore2.ReadError("reset"), TemporaryError, "^{host}: reset$"),
        (httpcore2.ReadError(), TemporaryError, "^{host}: ReadError$"),
        (httpcore2.ConnectError("{host} has no address"), TemporaryError, "^{host} has no address$"),
        (httpcore2.RemoteProtocolError("no HTTP"), TemporaryError, "^{host}: no HTTP$"),
        (httpcore2.ProxyError("407"), TemporaryError, "^{host}: 407$"),
        (httpcore2.UnsupportedProtocol("?"), RegistryError, "^the address 'https://.*' cannot be used$"),
    ],
)
def test_errors_of_connections_name_the_host(
    error: Exception, kind: type[RegistryError], message: str
) -> None:
    host = "models.example:8443"
    if "{host}" in str(error):
        error = type(error)(str(error).format(host=host))
    with pytest.raises(kind, match=message.format(host=host)) as found, translated(f"https://{host}/v2/"):
        raise error
    assert type(found.value) is kind


def test_a_name_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: int, **how: Any) -> list[Any]:
        assert (host, port, how) == ("models.example", 443, {"type": socket.SOCK_STREAM})
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(
        httpcore2.ConnectError, match=r"^models\.example cannot be resolved: Name or service not known$"
    ):
        GuardedNetwork().connect_tcp("models.example", 443)


def test_a_refusal_says_how_to_allow_the_host() -> None:
    with pytest.raises(
        RegistryError,
        match=r"^10\.0\.0\.1 has a private address; name it in CHASKI_PRIVATE_REGISTRIES "
        r"if it is your own registry$",
    ):
        GuardedNetwork().require_allowed("10.0.0.1", 443)


@pytest.mark.parametrize(
    ("hosts", "port", "is_allowed"),
    [
        ((), 443, False),
        (("10.0.0.1",), 443, True),
        (("10.0.0.1:80",), 443, False),
        (("10.0.0.1:443",), 443, True),
    ],
)
def test_a_proxy_is_asked_for_allowed_hosts_only(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], port: int, is_allowed: bool
) -> None:
    reached: list[tuple[str, int]] = []

    def connect_tcp(self: object, host: str, port: int, *rest: object) -> httpcore2.NetworkStream:
        reached.append((host, port))
        raise httpcore2.ConnectError("refused")

    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", connect_tcp)
    monkeypatch.setenv("https_proxy", "http://192.168.7.7:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    client = Http(Access(private_hosts=frozenset(hosts)))
    for _ in range(2):
        with (
            pytest.raises(RegistryError, match="refused" if is_allowed else "has a private address"),
            client.request("GET", "https://10.0.0.1/v2/"),
        ):
            pass
    assert reached == [("192.168.7.7", 3128)] * 2 * is_allowed
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    with pytest.raises(RegistryError), client.request("GET", "https://10.0.0.1/v2/"):
        pass
    assert reached[2 * is_allowed :] == [("10.0.0.1", 443)] * is_allowed
    client.close()
