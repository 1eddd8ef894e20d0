from __future__ import annotations

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpcore2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from chaski.errors import RegistryError
from chaski.store.network import GuardedNetwork, is_public


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "104.21.0.1", "2606:4700::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0",
        "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:db8::1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1",
        "64:ff9b:1:7f00:0:100::", "fec0::1", "fec0::1%2", "::1.1.1.1", "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe", "100::1", "3fff::1", "5f00::1", "4000::1",
        "::ffff:100.64.0.1",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Set the addresses to which every name resolves."""
    addresses: list[str] = []

    def getaddrinfo(host: str, port: int, **how: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return addresses


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the targets of connections; those to 9.9.9.9 fail."""
    made: list[tuple[str, int]] = []

    def connect_tcp(self: object, host: str, port: int, *rest: object) -> httpcore2.NetworkStream:
        made.append((host, port))
        if host == "9.9.9.9":
            raise httpcore2.ConnectError("refused")
        return httpcore2.NetworkStream()

    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", connect_tcp)
    return made


def test_a_name_is_checked_by_the_address_that_is_used(
    resolved: list[str], connected: list[tuple[str, int]]
) -> None:
    network = GuardedNetwork()
    resolved += ["10.0.0.1", "9.9.9.9", "1.1.1.1", "127.0.0.1"]
    network.connect_tcp("registry.example", 443)
    assert connected == [("9.9.9.9", 443), ("1.1.1.1", 443)]
    resolved[:] = ["10.0.0.1", "127.0.0.1"]
    with pytest.raises(RegistryError, match="example has a private address"):
        network.connect_tcp("registry.example", 443)
    assert len(connected) == 2


def test_failures_to_connect(resolved: list[str], connected: list[tuple[str, int]]) -> None:
    resolved += ["9.9.9.9"]
    with pytest.raises(httpcore2.ConnectError, match="refused"):
        GuardedNetwork().connect_tcp("registry.example", 443)
    resolved.clear()
    with pytest.raises(httpcore2.ConnectError, match="has no address"):
        GuardedNetwork().connect_tcp("registry.example", 443)


@pytest.mark.parametrize(
    ("exempt", "port"), [("models.lan", 80), ("models.lan", 5000), ("models.lan:5000", 5000)]
)
def test_hosts_that_may_be_private(
    resolved: list[str], connected: list[tuple[str, int]], exempt: str, port: int
) -> None:
    resolved += ["192.168.1.5"]
    GuardedNetwork([exempt]).connect_tcp("Models.lan", port)
    assert connected == [("192.168.1.5", port)]
    with pytest.raises(RegistryError):
        GuardedNetwork([exempt]).connect_tcp("other.lan", port)
    with pytest.raises(RegistryError):
        GuardedNetwork(["models.lan:5000"]).connect_tcp("models.lan", 5001)


def test_behind_a_proxy_only_written_addresses_can_be_checked() -> None:
    network = GuardedNetwork(["10.1.1.1"])
    for host in ("127.0.0.1", "::1", "localhost", "a.localhost", "10.0.0.1"):
        with pytest.raises(RegistryError):
            network.require_allowed(host, 443)
    for host in ("1.1.1.1", "registry.example", "10.1.1.1"):
        network.require_allowed(host, 443)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_who_waits_for_a_silent_server_can_be_interrupted(tmp_path: Path, is_encrypted: bool) -> None:
    network = GuardedNetwork(["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        accepted = threads.submit(accept, listener, certificate(tmp_path) if is_encrypted else None)
        stream = network.connect_tcp("127.0.0.1", listener.getsockname()[1], timeout=20)
        if is_encrypted:
            trusting = ssl.create_default_context(cafile=str(tmp_path / "own.pem"))
            stream = stream.start_tls(trusting, "localhost", timeout=20)
        with accepted.result():
            reading = threads.submit(stream.read, 100, 20)
            time.sleep(0.05)  # so that it waits in the system call
            network.interrupt()
            try:
                assert reading.result(5) == b""
            except httpcore2.ReadError:
                assert is_encrypted  # TLS reports the missing end
        stream.close()


def accept(listener: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    connection, _ = listener.accept()
    return connection if context is None else context.wrap_socket(connection, server_side=True)


def certificate(folder: Path) -> ssl.SSLContext:
    """Make a self-signed server certificate in own.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
    alternatives = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    signed = made.add_extension(alternatives, critical=False).sign(key, hashes.SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "own.pem").write_bytes(signed.public_bytes(Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem")
    return context


def test_limits_reach_the_connection(resolved: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def connect_tcp(self: object, *how: object) -> httpcore2.NetworkStream:
        asked.append(how)
        return httpcore2.NetworkStream()

    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", connect_tcp)
    resolved += ["1.1.1.1"]
    GuardedNetwork().connect_tcp("registry.example", 443, 7.0, "0.0.0.0", [])
    assert asked == [("1.1.1.1", 443, 7.0, "0.0.0.0", [])]
