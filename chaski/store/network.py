"""The addresses that a registry client may connect to: public ones, and hosts named as exceptions.

A name in a pull request can come from a stranger, and so can a redirect. Each connection goes to an address
that was checked right before, so a name that changes its meaning between check and use gains nothing.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias
from weakref import WeakSet

import httpcore2

from chaski.errors import RegistryError

__all__ = ["GuardedNetwork", "SlowTransferError", "WatchedNetwork", "is_public"]

_Streams: TypeAlias = "WeakSet[_Stream]"
# All that the sixth version has given to the public internet so far, but for an example's range (RFC 9637).
_UNICAST = ipaddress.IPv6Network("2000::/3")
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
# Addresses of the fourth version behind a translator that reaches the public ones only (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet, in whatever form it is written.

    One of the sixth version that holds one of the fourth is as public as that. Forms that are given up, or
    for a site's own use, such as `::127.0.0.1`, `fec0::1` and `64:ff9b:1::7f00:1`, are never public. Raises
    ValueError for what is no address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = _inner(found)
        if inner is None:
            return found in _UNICAST and found not in _EXAMPLES and found.is_global
        found = inner
    return found.is_global and not found.is_multicast


class SlowTransferError(httpcore2.ReadTimeout):
    """The other end sends, but too slowly."""


class WatchedNetwork(httpcore2.SyncBackend):
    """TCP connections that can all be interrupted, and that end where the other end sends too slowly.

    window: seconds of waiting after which the rate is judged.
    least_rate: bytes per second that must come in a window. Time that the other end takes to begin an answer
        does not count, nor does time in which nothing is read.
    """

    def __init__(self, window: float = math.inf, least_rate: float = 0.0) -> None:
        self._window, self._least_rate = window, least_rate
        self._streams: _Streams = WeakSet()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to a host."""
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._streams, self._window, self._least_rate)

    def interrupt(self) -> None:
        """End all connections now. To close them is not enough: a thread that reads would go on waiting."""
        for stream in list(self._streams):
            with suppress(OSError):  # it has ended already
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class GuardedNetwork(WatchedNetwork):
    """TCP connections to public addresses, and to any address of `private_hosts`.

    private_hosts: names or addresses, in small letters; with `:port` only that port is meant.
    """

    def __init__(
        self, private_hosts: Iterable[str] = (), window: float = math.inf, least_rate: float = 0.0
    ) -> None:
        super().__init__(window, least_rate)
        self._private_hosts = frozenset(private_hosts)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first allowed address that answers. Raises RegistryError when none is allowed."""
        failure = httpcore2.ConnectError(f"{host} has no address")
        for address in self._allowed(host, port):
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = httpcore2.ConnectError(str(error))
        raise failure

    def require_allowed(self, host: str, port: int) -> None:
        """Refuse a private address that is written out, where a proxy is going to resolve names."""
        try:
            is_forbidden = not is_public(host)
        except ValueError:
            is_forbidden = host == "localhost" or host.endswith(".localhost")
        if is_forbidden and not self._is_exempt(host, port):
            raise _refusal(host)

    def _allowed(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(f"{host} cannot be resolved: {error.strerror}") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if self._is_exempt(host, port):
            return addresses
        public = [address for address in addresses if is_public(address)]
        if addresses and not public:
            raise _refusal(host)
        return public

    def _is_exempt(self, host: str, port: int) -> bool:
        return not self._private_hosts.isdisjoint({host.lower(), f"{host.lower()}:{port}"})


class _Stream(httpcore2.NetworkStream):
    """A connection that is among the open ones while somebody has it, also when TLS is around it."""

    def __init__(
        self, stream: httpcore2.NetworkStream, among: _Streams, window: float, least_rate: float
    ) -> None:
        self._stream = stream
        self._among = among
        self._window, self._least_rate = window, least_rate
        self._has_begun, self._waited, self._received = False, 0.0, 0
        among.add(self)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        begin = time.monotonic()
        found = self._stream.read(max_bytes, timeout)
        self._received += len(found)
        if self._has_begun:
            self._waited += time.monotonic() - begin
        self._has_begun = True
        if self._waited >= self._window:
            if found and self._received < self._waited * self._least_rate:
                raise SlowTransferError(f"{self._received} bytes came in {self._waited:.0f} seconds")
            self._waited, self._received = 0.0, 0
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._has_begun, self._waited, self._received = False, 0.0, 0
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._among.discard(self)
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(secured, self._among, self._window, self._least_rate)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _refusal(host: str) -> RegistryError:
    return RegistryError(
        f"{host} has a private address; name it in CHASKI_PRIVATE_REGISTRIES if it is a registry of yours"
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The address of the fourth version that a connection to this one leads to, if there is one."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
