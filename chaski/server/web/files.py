"""Files of the web page, read and compressed. `make web` builds them from the sources in `web/`.

The name of a file contains a digest of its content, so that browsers may cache it forever. Only the name
`index.html` contains none. The images in `icons`, which browsers ask for without a link, show
`web/src/icon.svg`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from importlib.resources import files

from msgspec import Struct
from starlette.datastructures import Headers

__all__ = ["PageFile", "icon_file", "page_file", "page_headers", "wants_page"]

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "ico": "image/x-icon",
    "png": "image/png",
    "woff2": "font/woff2",
    "bcmap": "application/octet-stream",
}
_COMPRESSED = ("html", "js", "css", "svg")
# The page loads nothing from elsewhere, and no text becomes markup or code, even if the page has a defect.
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "worker-src": "'self'",
    "font-src": "'self'",
    "img-src": "'self' data: blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    # The only policy returns a single address, that of the worker that reads PDFs (web/src/pdf/start.ts).
    "trusted-types": "pdf-worker",
}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


@cache
def page_headers(mcp_servers: tuple[str, ...]) -> dict[str, str]:
    """Return the headers of every file of the page, which may reach this server and these origins."""
    policy = {**_POLICY, "style-src": _styles(), "connect-src": " ".join(("'self'", *mcp_servers))}
    text = "; ".join(f"{name} {value}" for name, value in policy.items())
    return {"Content-Security-Policy": text, **_HEADERS}


def _styles() -> str:
    """Allow the one style element of index.html, by its digest, and styles that scripts of the page set."""
    page = _read("bundle", "index.html").data
    style = page.partition(b"<style>")[2].partition(b"</style>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(style).digest()).decode()}'"


class PageFile(Struct, frozen=True):
    """A file of the page. `compressed`: its bytes as gzip; None for types that gzip does not shorten."""

    media_type: str
    data: bytes
    compressed: bytes | None
    etag: str


def page_file(name: str) -> PageFile | None:
    """Return a file of the page by its name, read once; None if there is none."""
    return _file("bundle", name)


def icon_file(name: str) -> PageFile | None:
    """Return an image of `icons` by its name, read once; None if there is none."""
    return _file("icons", name)


@cache
def _names(folder: str) -> frozenset[str]:
    return frozenset(each.name for each in (files(__package__) / folder).iterdir())


def _file(folder: str, name: str) -> PageFile | None:
    return _read(folder, name) if name in _names(folder) else None


@cache
def _read(folder: str, name: str) -> PageFile:
    data = (files(__package__) / folder / name).read_bytes()
    ending = name.rpartition(".")[2]
    compressed = gzip.compress(data, 9, mtime=0) if ending in _COMPRESSED else None
    return PageFile(_TYPES[ending], data, compressed, f'"{hashlib.sha256(data).hexdigest()[:24]}"')


def wants_page(headers: Headers) -> bool:
    """Return whether a request for `/` comes from a browser, and not from a client of an API."""
    return "text/html" in headers.get("accept", "")
