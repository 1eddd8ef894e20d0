"""Checks of Host, Origin and keys, before any handler runs.

Any web page can send requests to this machine. Browsers send the page's origin, so foreign origins are
refused. If a page redirects its own name to this machine (DNS rebinding), the Host header shows that name.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chaski.server.fields.ignored import IGNORED_HEADER
from chaski.server.http.api import api_of
from chaski.server.http.problems import Problem
from chaski.server.network.hosts import without_port
from chaski.server.network.readers import admit
from chaski.server.settings import Settings
from chaski.server.telemetry.exchange import note_key

__all__ = ["Access", "Guard", "has_key", "key_of", "may_change_models"]

_LOCAL_ENDINGS = (".localhost", ".local", ".internal")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "[::1]")
_LOCAL_ORIGINS = (
    *(
        f"{scheme}://{host}{port}"
        for scheme in ("http", "https")
        for host in _LOCAL_HOSTS
        for port in ("", ":*")
    ),
    *(f"{scheme}://*" for scheme in ("app", "file", "tauri", "vscode-webview", "vscode-file")),
)
_METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
_HEADERS = "Authorization, Content-Type, User-Agent, Accept, X-Requested-With, OpenAI-Beta, X-Api-Key"
_ASKED_HEADERS = "access-control-request-headers"
_DAY = "43200"


class Access(Enum):
    """Access level of a route on a server with keys: all clients, any key, or an administrator's key."""

    PUBLIC = "public"
    USER = "user"
    ADMIN = "administrator"


class Guard:
    """ASGI middleware that answers 403 to a wrong Host or Origin, and 401 to a request without a valid key.

    access_of  function that returns the access level of a request
    """

    def __init__(self, app: ASGIApp, settings: Settings, access_of: Callable[[Scope], Access]) -> None:
        self._app = app
        self._settings = settings
        self._access_of = access_of
        self._origins = (*_LOCAL_ORIGINS, *(origin.rstrip("/") for origin in settings.origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if (problem := self._foreign(origin, headers, scope)) is not None:
            await api_of(scope["path"]).refusal(problem)(scope, receive, send)
            return
        if scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=_preflight(origin, headers))(scope, receive, send)
            return
        access = self._access_of(scope)
        if (problem := self._problem(access, headers)) is not None:
            await api_of(scope["path"]).refusal(problem)(scope, receive, send)
        else:
            if access is not Access.PUBLIC:
                admit(scope)
            await self._app(scope, receive, send if origin is None else _with_origin(send, origin))

    def _foreign(self, origin: str | None, headers: Headers, scope: Scope) -> Problem | None:
        """Return the problem with the Host or the Origin of a request; None if both are allowed."""
        if not self._is_host_allowed(headers, scope):
            host = headers.get("host", "")
            told = f"the Host {host!r:.200} is no name of this machine; CHASKI_ALLOWED_HOSTS allows it"
            return Problem(403, f"forbidden: {told}")
        if not self._is_origin_allowed(origin, headers, scope):
            told = (
                f"web pages of the Origin {origin!r:.200} may not use this server; OLLAMA_ORIGINS allows them"
            )
            return Problem(403, f"forbidden: {told}")
        return None

    def _is_host_allowed(self, headers: Headers, scope: Scope) -> bool:
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            return False
        host = without_port(hosts[0]) if hosts else ""
        if host is None:
            return False
        return host in self._names or host.endswith(_LOCAL_ENDINGS) or _is_near(host, scope)

    @cached_property
    def _names(self) -> frozenset[str]:
        own = ("", "localhost", socket.gethostname().lower(), self._settings.address.host.lower())
        return frozenset((*own, *self._settings.allowed_hosts))

    def _is_origin_allowed(self, origin: str | None, headers: Headers, scope: Scope) -> bool:
        if origin is None:
            return True
        if origin == "null":  # sent by sandboxed frames and local files, which may belong to any page
            return "*" in self._origins
        if not origin:
            return False
        if origin == f"{scope['scheme']}://{headers.get('host', '')}":
            return True
        return any(fnmatchcase(origin.lower(), _literal(pattern)) for pattern in self._origins)

    def _problem(self, access: Access, headers: Headers) -> Problem | None:
        """Return the problem with a request's key; None if there is none, or if the server has no keys."""
        settings = self._settings
        if not settings.has_keys or access is Access.PUBLIC:
            return None
        key = key_of(headers)
        admin = _position(key, settings.admin_keys)
        user = 0 if admin else _position(key, settings.api_keys)
        if not admin and not user:
            return Problem(401, "unauthorized: this server requires an API key")
        note_key(f"admin-{admin}" if admin else f"api-{user}")
        if not admin and access is Access.ADMIN:
            return Problem(403, "forbidden: this request requires an admin key")
        return None


def may_change_models(headers: Headers, settings: Settings) -> bool:
    """Return whether a client may change models: it sent an admin key, or the server has no keys."""
    return not settings.has_keys or _position(key_of(headers), settings.admin_keys) > 0


def has_key(headers: Headers, settings: Settings) -> bool:
    """Return whether a client may use models: it sent a valid key, or the server has no keys."""
    key = key_of(headers)
    return not settings.has_keys or _position(key, (*settings.api_keys, *settings.admin_keys)) > 0


def _is_near(host: str, scope: Scope) -> bool:
    """Return whether a host is an address of this machine or its networks, which no DNS entry can fake."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    own = (scope.get("server") or ("",))[0]
    return address.is_loopback or address.is_private or address.is_unspecified or host == own


def _literal(pattern: str) -> str:
    """Escape all characters that are special to `fnmatch`, except *."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def key_of(headers: Headers) -> str:
    """Return the key in `Authorization: Bearer KEY`, or in `X-Api-Key`, which Anthropic's clients send."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _position(key: str, known: Iterable[str]) -> int:
    """Return the position of a key among known ones, from 1, or 0. The time does not depend on the key."""
    given = key.encode()
    return max((n * hmac.compare_digest(given, each.encode()) for n, each in enumerate(known, 1)), default=0)


def _preflight(origin: str | None, headers: Headers) -> dict[str, str]:
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": headers.get(_ASKED_HEADERS, _HEADERS),
        "Access-Control-Max-Age": _DAY,
        "Vary": "Origin",
    }


def _with_origin(send: Send, origin: str) -> Send:
    """Return a `send` that adds the headers which let a page of this origin read the answer."""

    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = IGNORED_HEADER
            headers.add_vary_header("Origin")
        await send(message)

    return send_with_origin
