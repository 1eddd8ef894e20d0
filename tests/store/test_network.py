from __future__ import annotations

import socket
from typing import Any

import httpcore2
import pytest

from chaski.errors import RegistryError
from chaski.store.network import GuardedNetwork, is_public


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "104.21.0.1", "2606:4700::1", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0",
        "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:db8::1", "::ffff:169.254.169.254",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that every name has."""
    addresses: list[str] = []

    def getaddrinfo(host: str, port: int, **how: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return addresses


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Where connections were made to; those to 9.9.9.9 fail."""
    made: list[tuple[str, int]] = []

    def connect_tcp(self: object, host: str, port: int, *rest: object) -> str:
        made.append((host, port))
        if host == "9.9.9.9":
            raise httpcore2.ConnectError("refused")
        return "stream"

    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", connect_tcp)
    return made


def test_a_name_is_checked_by_the_address_that_is_used(
    resolved: list[str], connected: list[tuple[str, int]]
) -> None:
    network = GuardedNetwork()
    resolved += ["10.0.0.1", "9.9.9.9", "1.1.1.1", "127.0.0.1"]
    assert network.connect_tcp("registry.example", 443) == "stream"
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
    assert GuardedNetwork([exempt]).connect_tcp("Models.lan", port) == "stream"
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
