"""The address that the server listens on: `OLLAMA_HOST`, read as Ollama reads it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from chaski.errors import OptionError

__all__ = ["DEFAULT_PORT", "Address", "is_loopback", "without_port"]

DEFAULT_PORT = 11434
_SCHEME_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; `scheme` and `path` matter to clients only."""

    host: str
    port: int
    scheme: str = "http"
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host`, `host:port`, `:port` or a URL, which has its scheme's port. Raises OptionError."""
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
    def url(self) -> str:
        """The URL by which a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{shown}:{self.port}" + (f"/{self.path}" if self.path else "")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener at that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_port(host: str) -> str | None:
    """Return the name or address in a Host header, in small letters; None for anything else."""
    try:
        parts = urlsplit(f"//{host}")
        is_plain = not (parts.path or parts.query or parts.fragment or parts.username is not None)
        # Reading the port checks it.
        return (parts.hostname or "").rstrip(".") if is_plain and parts.port != 0 else None
    except ValueError:
        return None


def _split(place: str, text: str) -> tuple[str, int | None]:
    if place.count(":") > 1 and not place.startswith("["):
        return place, None  # a bare address of IPv6
    try:
        parts = urlsplit(f"//{place}")
        return parts.hostname or "", parts.port
    except ValueError:
        raise OptionError(f"OLLAMA_HOST = {text!r:.200} is no address; write host:port") from None
