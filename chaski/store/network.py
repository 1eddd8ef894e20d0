"""Network access of a registry client: only public addresses and explicitly allowed hosts.

A name in a pull request, or a redirect, may come from an untrusted client. Each connection goes to an address
that was just checked. This prevents DNS rebinding, where a name resolves differently after the check.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakSet

import httpcore2

from chaski.errors import RegistryError

__all__ = ["GuardedNetwork", "SlowTransferError", "WatchedNetwork", "is_public"]

_Streams: TypeAlias = "WeakSet[_Stream]"
# The IPv6 range assigned to the public internet so far. It includes a documentation range (RFC 9637).
_UNICAST = ipaddress.IPv6Network("2000::/3")
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
# IPv4 addresses behind a translator that reaches only public addresses (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an address, in any notation, belongs to the public internet.

    An IPv6 address that embeds an IPv4 address is public if the IPv4 address is. Deprecated and site-local
    forms, such as `::127.0.0.1`, `fec0::1` and `64:ff9b:1::7f00:1`, are never public. Raises ValueError for
    an invalid address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = _inner(found)
        if inner is None:
            return found in _UNICAST and found not in _EXAMPLES and found.is_global
        found = inner
    return found.is_global and not found.is_multicast


class SlowTransferError(httpcore2.ReadTimeout):
    """The peer sends too slowly."""


class WatchedNetwork(httpcore2.SyncBackend):
    """Opens TCP connections that can be interrupted together and that fail if the peer is too slow.

    window: seconds of waiting after which the rate is judged.
    least_rate: minimum bytes per second in a window. Time before the first byte of an answer, and time in
    which the caller reads nothing, does not count.
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
        """End all connections now. Closing them would not be enough: reading threads would keep waiting."""
        for stream in list(self._streams):
            stream.interrupt()


class GuardedNetwork(WatchedNetwork):
    """Opens TCP connections to public addresses, and to any address of `private_hosts`.

    private_hosts: names or addresses, in lower case; with `:port`, only that port is allowed.
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
        """Connect to the first allowed address that answers. Raises RegistryError if none is allowed."""
        failure = httpcore2.ConnectError(f"{host} has no address")
        for address in self._allowed(host, port):
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = httpcore2.ConnectError(str(error))
        raise failure

    def require_allowed(self, host: str, port: int) -> None:
        """Reject a literal private address when a proxy resolves the names."""
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
    """A connection that is tracked as open while it is in use, also inside TLS.

    Another thread may close it during a read. The socket is then closed only after the read, because
    a read that has just begun would wait for whatever file gets the freed descriptor.
    """

    def __init__(
        self, stream: httpcore2.NetworkStream, among: _Streams, window: float, least_rate: float
    ) -> None:
        self._stream = stream
        self._among = among
        self._window, self._least_rate = window, least_rate
        self._has_begun, self._waited, self._received = False, 0.0, 0
        self._in_use = Lock()
        among.add(self)

    def interrupt(self) -> None:
        """End the connection; a thread that reads or writes stops waiting."""
        with suppress(OSError):  # it has ended already
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        begin = time.monotonic()
        with self._in_use:
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
        with self._in_use:
            self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._among.discard(self)
        self.interrupt()
        with self._in_use:
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
        f"{host} has a private address; name it in CHASKI_PRIVATE_REGISTRIES if it is your own registry"
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which a connection to this IPv6 address leads, if any."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
