"""HTTP for a registry client: raw bodies, strict redirects, and errors that can be retried.

The client decompresses nothing, keeps no cookies, and sends credentials only to their own host.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore2
from msgspec import Struct

from chaski import __version__
from chaski.errors import RegistryError
from chaski.store.network import GuardedNetwork, SlowTransferError, WatchedNetwork

__all__ = ["Access", "Http", "HttpReply", "SlowError", "TemporaryError", "host_of", "range_headers"]

_MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
# Statuses for which a retry may help: timeouts, too many requests and overloaded servers.
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_PORTS = {"https": 443, "http": 80}
_PIECE_BYTES = 1 << 16


class TemporaryError(RegistryError):
    """A request failed, but a retry may succeed."""


class SlowError(TemporaryError):
    """A server sends too slowly to finish a transfer in reasonable time."""


class Access(Struct, frozen=True):
    """The registries that may be contacted, and how.

    insecure       allow http without TLS if a name or a redirect asks for it
    private_hosts  hosts that may have private addresses: `host` or `host:port`, in lower case
    username, password  for registries that require them
    key            file of the signing key for other registries; None for the user's own key
    stall_seconds  how long a server may stay silent before a request counts as failed
    least_rate     minimum bytes per second of each connection, over `stall_seconds`
    """

    insecure: bool = False
    private_hosts: frozenset[str] = frozenset()
    username: str | None = None
    password: str | None = None
    key: Path | None = None
    stall_seconds: float = 30.0
    least_rate: float = 200.0


class HttpReply:
    """The reply to a request. Its body can be read once, piece by piece."""

    def __init__(self, response: httpcore2.Response, url: str) -> None:
        self.status = response.status
        self.url = url
        self.headers = {
            key.decode("latin-1").lower(): value.decode("latin-1") for key, value in response.headers
        }
        self._response = response

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the body as they arrive. Raises TemporaryError if they stop."""
        with _translated(self.url):
            for piece in self._response.iter_stream():
                for begin in range(0, len(piece), _PIECE_BYTES):
                    yield piece[begin : begin + _PIECE_BYTES]

    def part(self, begin: int, end: int, size: int) -> tuple[int, Iterator[bytes]]:
        """Return the actual start position and the bytes, if `range_headers` were sent and accepted.

        A server without range support sends the whole file, so the start position is 0. Raises TemporaryError
        for another range.
        """
        if self.status != 206:
            return 0, self.pieces()
        found = self.headers.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(found)
        is_asked = match and int(match[1]) == begin and int(match[2]) < end and match[3] in ("*", str(size))
        if not is_asked:
            raise TemporaryError(
                f"{host_of(self.url)} sent the range {found!r:.60} for {begin}-{end - 1}/{size}"
            )
        return begin, self.pieces()

    def read(self, limit: int) -> bytes:
        """Return the whole body, of at most `limit` bytes. Raises RegistryError for a longer one."""
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if len(body) > limit:
                raise RegistryError(
                    f"{host_of(self.url)} sent more than {limit} bytes where a short text belongs"
                )
        return bytes(body)


class Http:
    """Sends requests to hosts that `access` allows. Safe to use from several threads; must be closed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        pace = access.stall_seconds, access.least_rate
        self._network = GuardedNetwork(access.private_hosts, *pace)
        self._to_proxies = WatchedNetwork(*pace)
        self._ssl = httpcore2.default_ssl_context()
        self._direct = httpcore2.ConnectionPool(
            self._ssl, max_connections=64, network_backend=self._network, keepalive_expiry=10
        )
        self._proxied: dict[str, httpcore2.ConnectionPool] = {}

    def close(self) -> None:
        """End all connections. A thread that waits for bytes gets a TemporaryError."""
        self._network.interrupt()
        self._to_proxies.interrupt()
        self._direct.close()
        for pool in self._proxied.values():
            pool.close()

    @contextmanager
    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterator[bytes] | None = None,
    ) -> Iterator[HttpReply]:
        """Send one request, without following redirects. Raises TemporaryError for a temporary status."""
        parts = self._checked(url)
        timeout = dict.fromkeys(("connect", "read", "write"), self._access.stall_seconds)
        sent = {"User-Agent": f"chaski/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
        pool = self._pool(parts)
        with _translated(url):
            stream = pool.stream(
                method, url, headers=list(sent.items()), content=content, extensions={"timeout": timeout}
            )
            with stream as response:
                reply = HttpReply(response, url)
                if reply.status in _TEMPORARY:
                    raise TemporaryError(f"{host_of(url)} answered {reply.status}")
                if reply.headers.get("content-encoding", "identity") != "identity":
                    raise RegistryError(f"{host_of(url)} compressed its answer, against the request")
                yield reply

    @contextmanager
    def follow(self, url: str, headers: Mapping[str, str], authorization: str | None) -> Iterator[HttpReply]:
        """GET `url`, following redirects. A redirect to another host drops the authorization."""
        for _ in range(_MAX_REDIRECTS):
            own = {"Authorization": authorization} if authorization else {}
            with self.request("GET", url, {**headers, **own}) as reply:
                if reply.status not in _REDIRECTS:
                    yield reply
                    return
                target = urljoin(url, reply.headers.get("location", ""))
            if _origin(urlsplit(target)) != _origin(urlsplit(url)):
                authorization = None
            url = target
        raise RegistryError(f"{host_of(url)} redirects without end")

    def _checked(self, url: str) -> SplitResult:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
            raise RegistryError(f"the address {url!r:.200} cannot be used")
        if parts.scheme == "http" and not self._access.insecure:
            raise RegistryError("insecure protocol http")
        return parts

    def _pool(self, parts: SplitResult) -> httpcore2.ConnectionPool:
        """Return the connection pool for a host: direct, or through the proxy named by the environment."""
        host = parts.hostname or ""
        proxy = urllib.request.getproxies().get(parts.scheme)
        if not proxy or urllib.request.proxy_bypass(parts.netloc):
            return self._direct
        self._network.require_allowed(host, parts.port or _PORTS[parts.scheme])
        if proxy not in self._proxied:
            self._proxied[proxy] = httpcore2.ConnectionPool(
                self._ssl, proxy=httpcore2.Proxy(proxy), network_backend=self._to_proxies
            )
        return self._proxied[proxy]


def range_headers(begin: int, end: int, size: int) -> dict[str, str]:
    """Return the headers that ask for the bytes from `begin` to `end` of a file of `size` bytes."""
    return {} if (begin, end) == (0, size) else {"Range": f"bytes={begin}-{end - 1}"}


def host_of(url: str) -> str:
    """Return the host of an address, with any explicit port. Errors may show this part."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Translate connection errors into errors that name the host."""
    host = host_of(url)
    try:
        yield
    except SlowTransferError as error:
        raise SlowError(f"{host} sends too slowly: {error}") from None
    except httpcore2.TimeoutException:
        raise TemporaryError(f"{host} does not answer") from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError) as error:
        reason = str(error) or type(error).__name__
        raise TemporaryError(reason if reason.startswith(host) else f"{host}: {reason}") from None
    except httpcore2.UnsupportedProtocol:
        raise RegistryError(f"the address {url!r:.200} cannot be used") from None
