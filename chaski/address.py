"""The address of a server, for the server and its clients: `OLLAMA_HOST`, parsed like Ollama does."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct

from chaski.errors import OptionError

__all__ = ["DEFAULT_PORT", "Address"]

DEFAULT_PORT = 11434
_SCHEME_PORTS = {"http": 80, "https": 443}


class Address(Struct, frozen=True):
    """A host and a port. Only clients use `scheme` and `path`."""

    host: str
    port: int
    scheme: str = "http"
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host`, `host:port`, `:port` or a URL (with its scheme's port). Raises OptionError."""
        scheme, mark, rest = text.strip().partition("://")
        if not mark:
            scheme, rest = "http", scheme
        if scheme not in _SCHEME_PORTS:
            raise OptionError(f"OLLAMA_HOST = {text!r:.200}: {scheme!r:.20} is neither http nor https")
        default = _SCHEME_PORTS[scheme] if mark else DEFAULT_PORT
        place, _, path = rest.partition("/")
        host, port = _split(place, text)
        return cls(host or "127.0.0.1", default if port is None else port, scheme, path.rstrip("/"))

    @property
    def reachable_host(self) -> str:
        """The host by which a client on this machine reaches the server. It is never `0.0.0.0`."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        """The URL by which a client on this machine reaches the server."""
        host = self.reachable_host
        shown = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{shown}:{self.port}" + (f"/{self.path}" if self.path else "")


def _split(place: str, text: str) -> tuple[str, int | None]:
    if place.count(":") > 1 and not place.startswith("["):
        return place, None  # a bare IPv6 address
    try:
        parts = urlsplit(f"//{place}")
        return parts.hostname or "", parts.port
    except ValueError:
        raise OptionError(f"OLLAMA_HOST = {text!r:.200} is no address; write host:port") from None
