"""Who may call what: every route and every key, hosts and origins, without a network."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import pytest
from starlette.datastructures import Headers

from chaski.address import Address
from chaski.server.http.endpoint import client_of
from chaski.server.http.guard import Access, Guard, has_key, may_change_models
from chaski.server.network.hosts import is_loopback, without_port
from chaski.server.network.readers import is_admitted
from chaski.server.routes import ROUTES, access_of
from chaski.server.settings import Settings
from chaski.server.telemetry.exchange import EXCHANGE, Exchange
from tests.server.rights import ADMIN, BODY, PUBLIC, Guarded, right_of

LOCAL = Settings(address=Address("127.0.0.1", 11434))
KEYS = Settings(address=LOCAL.address, api_keys=("user", "other"), admin_keys=("admin", "second"))


def bearer(key: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {key}")]


# ---- routes ----


def test_each_route_has_the_right_that_the_docs_promise() -> None:
    found = {f"{route.method} {route.path}": route.access for route in ROUTES}
    assert len(found) == len(ROUTES)
    assert found.keys() >= PUBLIC | ADMIN
    assert found == {name: right_of(*name.split(" ")) for name in found}


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        (None, {Access.PUBLIC}),
        ("wrong", {Access.PUBLIC}),
        ("user", {Access.PUBLIC, Access.USER}),
        ("other", {Access.PUBLIC, Access.USER}),
        ("admin", set(Access)),
        ("second", set(Access)),
    ],
)
def test_a_request_reaches_its_handler_only_if_its_key_allows_it(
    key: str | None, allowed: set[Access]
) -> None:
    guarded = Guarded(KEYS)
    for route in ROUTES:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        answer = guarded.ask(route.method, path, () if key is None else bearer(key))
        right = right_of(route.method, route.path)
        refused = 403 if key in ("user", "other") else 401
        assert answer.status == (200 if right in allowed else refused), route.path
        assert (answer.scope is not None) == (right in allowed), route.path


@pytest.mark.parametrize(
    ("method", "path", "access"),
    [
        ("HEAD", "/api/version", Access.PUBLIC),
        ("HEAD", "/api/live/cache", Access.ADMIN),
        ("HEAD", "/api/tags", Access.USER),
        ("DELETE", "/api/version", Access.USER),
        ("GET", "/api/delete", Access.USER),
        ("GET", "/nothing", Access.USER),
        ("GET", "/api/version/", Access.USER),
        ("GET", "/models/load", Access.USER),
        ("GET", "/web/a/b", Access.USER),
    ],
)
def test_what_is_no_route_is_not_public(method: str, path: str, access: Access) -> None:
    assert access_of({"type": "http", "method": method, "path": path}) is access


# ---- keys ----


@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize("given", ["", "nobody", "user", "both", "admin"])
@pytest.mark.parametrize(
    ("api_keys", "admin_keys"),
    [((), ()), (("user", "both"), ()), ((), ("both", "admin")), (("user", "both"), ("both", "admin"))],
)
def test_what_each_key_allows(
    api_keys: tuple[str, ...], admin_keys: tuple[str, ...], given: str, access: Access
) -> None:
    settings = keyed(api_keys, admin_keys)
    path = {Access.PUBLIC: "/api/version", Access.USER: "/api/tags", Access.ADMIN: "/api/live/cache"}[access]
    answer = Guarded(settings).ask("GET", path, bearer(given) if given else ())
    is_open = not api_keys and not admin_keys
    is_admin, is_user = is_open or given in admin_keys, is_open or given in (*api_keys, *admin_keys)
    if access is Access.PUBLIC or is_admin or (is_user and access is Access.USER):
        assert (answer.status, answer.body) == (200, BODY)
    elif is_user:
        message = "forbidden: this request requires an admin key"
        assert (answer.status, json.loads(answer.body)) == (403, {"error": message})
    else:
        message = "unauthorized: this server requires an API key"
        assert (answer.status, json.loads(answer.body)) == (401, {"error": message})
    headers = Headers({"x-api-key": given})
    assert may_change_models(headers, settings) is is_admin
    assert has_key(headers, settings) is is_user


def keyed(api_keys: tuple[str, ...], admin_keys: tuple[str, ...]) -> Settings:
    return Settings(address=LOCAL.address, api_keys=api_keys, admin_keys=admin_keys)


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ([("Authorization", "Bearer two words")], True),
        ([("Authorization", "bearer   two words  ")], True),
        ([("Authorization", "BEARER two words")], True),
        ([("X-Api-Key", "two words")], True),
        ([("Authorization", "Basic abc"), ("X-Api-Key", "two words")], True),
        ([("Authorization", "Bearer wrong"), ("X-Api-Key", "two words")], False),
        ([("Authorization", "Bearer"), ("X-Api-Key", "two words")], False),
        ([("Authorization", "Bearer two words"), ("X-Api-Key", "wrong")], True),
        ([("Authorization", "two words")], False),
        ([("Authorization", "Basic two words")], False),
        ([("Authorization", "Bearer two  words")], False),
        ([("Authorization", "Bearer Two Words")], False),
        ([("X-Api-Key", "")], False),
        ([("Cookie", "key=two words")], False),
    ],
)
def test_where_a_key_is_sent(headers: list[tuple[str, str]], is_allowed: bool) -> None:
    for settings in (keyed(("two words",), ()), keyed((), ("two words",))):
        answer = Guarded(settings).ask("GET", "/api/tags", headers)
        assert (answer.status == 200) is is_allowed


def test_a_client_is_its_key_or_else_its_address() -> None:
    address = ("10.1.2.3", 5000)
    for headers, client, name in (
        ([(b"authorization", b"Bearer user")], address, "user"),
        ([(b"x-api-key", b"user")], address, "user"),
        ([(b"authorization", b"Bearer ")], address, "10.1.2.3"),
        ([], address, "10.1.2.3"),
        ([], None, ""),
    ):
        assert client_of({"type": "http", "headers": headers, "client": client}) == name


def test_logs_name_a_key_by_its_place() -> None:
    for key, path, name in (
        ("user", "/api/tags", "api-1"),
        ("other", "/api/tags", "api-2"),
        ("other", "/api/live/cache", "api-2"),
        ("admin", "/api/tags", "admin-1"),
        ("second", "/api/live/cache", "admin-2"),
        ("wrong", "/api/tags", None),
        ("user", "/api/version", None),
    ):
        exchange = Exchange("id")
        token = EXCHANGE.set(exchange)
        Guarded(KEYS).ask("GET", path, bearer(key))
        EXCHANGE.reset(token)
        assert exchange.key == name


def test_who_sent_a_key_may_read_slowly() -> None:
    for path, key, is_known in (("/api/tags", "user", True), ("/api/version", "user", False)):
        scope = Guarded(KEYS).ask("GET", path, bearer(key)).scope
        assert scope is not None
        assert is_admitted(scope) is is_known


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/api/tags", {"error": "unauthorized: this server requires an API key"}),
        ("/v1/models", {"error": {"type": "authentication_error"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "authentication_error"}}),
    ],
)
def test_a_refusal_has_the_form_of_its_api(path: str, form: dict[str, Any]) -> None:
    found = json.loads(Guarded(KEYS).ask("GET", path).body)
    if isinstance(form["error"], dict):
        found["error"] = {"type": found["error"]["type"]}
    assert {name: found[name] for name in form} == form


# ---- hosts ----


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("example.org..", "example.org"),
        ("example.org:65535", "example.org"),
        ("example.org:", "example.org"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("", ""),
        ("example.org:0", None),
        ("example.org:65536", None),
        ("example.org:eighty", None),
        ("example.org/", None),
        ("example.org/path", None),
        ("example.org?query", None),
        ("example.org#fragment", None),
        ("user@example.org", None),
        ("@example.org", None),
        (":secret@example.org", None),
        ("[::1", None),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str | None) -> None:
    assert without_port(host) == name


@pytest.mark.parametrize(
    ("host", "is_near"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, is_near: bool) -> None:
    assert is_loopback(host) is is_near


HOSTS = Settings(address=Address("Models.Lan.example", 80), allowed_hosts=("a.example", "b.example"))


@pytest.mark.parametrize(
    ("hosts", "is_allowed"),
    [
        ((), True),
        (("",), True),
        (("localhost",), True),
        ((socket.gethostname().upper(),), True),
        (("models.lan.example:80",), True),
        (("A.example",), True),
        (("b.example.",), True),
        (("192.168.3.4",), True),
        (("172.16.0.1",), True),
        (("[fd00::1]",), True),
        (("[::]",), True),
        (("0.0.0.0",), True),
        (("printer.local",), True),
        (("my.localhost",), True),
        (("host.docker.internal",), True),
        (("93.184.216.34",), True),  # the address at which the request arrived
        (("93.184.216.35",), False),
        (("[2606:2800::1]",), False),
        (("c.example",), False),
        (("x.a.example",), False),
        (("mylocal",), False),
        (("local",), False),
        (("a.example/x",), False),
        (("localhost", "localhost"), False),
        (("localhost", "evil.example"), False),
        (("evil.example", "localhost"), False),
    ],
)
def test_hosts_by_which_the_server_may_be_called(hosts: tuple[str, ...], is_allowed: bool) -> None:
    headers = [("Host", host) for host in hosts]
    answer = Guarded(HOSTS).ask(headers=headers, server=("93.184.216.34", 80))
    assert (answer.status, answer.scope is None) == ((200, False) if is_allowed else (403, True))
    if not is_allowed:
        told = f"the Host {hosts[0]!r} is no name of this machine; CHASKI_ALLOWED_HOSTS allows it"
        assert json.loads(answer.body) == {"error": f"forbidden: {told}"}


def test_an_application_that_knows_no_address_of_its_own() -> None:
    for server in (None, ("/run/chaski.sock", None)):
        assert Guarded(LOCAL).ask(headers=[("Host", "localhost")], server=server).status == 200
        assert Guarded(LOCAL).ask(headers=[("Host", "8.8.8.8")], server=server).status == 403


def test_long_names_are_not_repeated_whole() -> None:
    for headers in ([("Host", "x" * 5000)], [("Origin", "x" * 5000)]):
        assert len(Guarded(LOCAL).ask(headers=headers).body) < 400


# ---- origins ----

PAGES = Settings(
    address=LOCAL.address, origins=("https://*.a.example/", "http://b.example:*", "https://[c]?.example")
)


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        *(
            (f"{scheme}://{host}", True)
            for scheme in ("http", "https")
            for host in ("localhost", "127.0.0.1")
        ),
        *((f"{scheme}://{host}", True) for scheme in ("http", "https") for host in ("0.0.0.0", "[::1]")),
        *((f"{scheme}://{host}:5", True) for scheme in ("http", "https") for host in ("localhost", "[::1]")),
        *((f"{scheme}://any", True) for scheme in ("app", "file", "tauri", "vscode-webview", "vscode-file")),
        ("HTTP://LocalHost:3000", True),
        ("https://x.a.example", True),
        ("https://x.y.a.example", True),
        ("http://b.example:8", True),
        ("https://[c]?.example", True),
        ("http://box.local:80", True),  # the Host of the request
        ("https://box.local:80", False),
        ("http://box.local", False),
        ("http://box.local:81", False),
        ("https://a.example", False),
        ("http://x.a.example", False),
        ("http://b.example", False),
        ("https://c?.example", False),
        ("https://[c]x.example", False),
        ("https://cx.example", False),
        ("http://1:1:1", False),
        ("null", False),
        ("", False),
        ("localhost", False),
        ("ftp://localhost", False),
    ],
)
def test_pages_that_may_ask(origin: str, is_allowed: bool) -> None:
    answer = Guarded(PAGES).ask(headers=[("Host", "box.local:80"), ("Origin", origin)])
    assert (answer.status, answer.scope is None) == ((200, False) if is_allowed else (403, True))
    assert answer.headers.get("access-control-allow-origin") == (origin if is_allowed else None)
    if not is_allowed:
        told = f"web pages of the Origin {origin!r} may not use this server; OLLAMA_ORIGINS allows them"
        assert json.loads(answer.body) == {"error": f"forbidden: {told}"}


def test_the_scheme_of_the_same_origin_counts() -> None:
    for scheme, origin, status in (
        ("https", "https://a.local", 200),
        ("https", "http://a.local", 403),
        ("http", "http://", 403),
    ):
        answer = Guarded(LOCAL).ask(headers=[("Host", "a.local"), ("Origin", origin)], scheme=scheme)
        assert answer.status == status


@pytest.mark.parametrize(
    ("origins", "is_allowed"),
    [((), False), (("*",), True), (("https://a.example", "*"), True), (("https://*", "n*", "null"), False)],
)
def test_pages_without_an_origin(origins: tuple[str, ...], is_allowed: bool) -> None:
    """A sandboxed frame sends null, whatever page contains it."""
    guarded = Guarded(Settings(address=LOCAL.address, origins=origins))
    assert (guarded.ask(headers=[("Origin", "null")]).status == 200) is is_allowed
    assert guarded.ask(headers=[("Origin", "")]).status == 403


def test_an_allowed_page_needs_a_key_too() -> None:
    page = [("Origin", "http://localhost:3000")]
    assert Guarded(KEYS).ask("GET", "/api/tags", page).status == 401
    assert Guarded(KEYS).ask("GET", "/api/tags", [*page, *bearer("user")]).status == 200
    foreign = Guarded(KEYS).ask("GET", "/api/tags", [("Origin", "https://evil.example"), *bearer("admin")])
    assert (foreign.status, foreign.scope) == (403, None)


def test_a_preflight_is_answered_without_a_key() -> None:
    answer = Guarded(KEYS).ask("OPTIONS", "/api/pull", [("Origin", "http://localhost:3000")])
    assert (answer.status, answer.scope) == (204, None)
    assert dict(answer.headers) == {
        "access-control-allow-origin": "http://localhost:3000",
        "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS",
        "access-control-allow-headers": (
            "Authorization, Content-Type, User-Agent, Accept, X-Requested-With, OpenAI-Beta, X-Api-Key"
        ),
        "access-control-max-age": "43200",
        "vary": "Origin",
    }
    asked = [("Origin", "app://x"), ("Access-Control-Request-Headers", "X-Mine")]
    named = Guarded(KEYS).ask("OPTIONS", "/api/pull", asked)
    assert named.headers["access-control-allow-headers"] == "X-Mine"
    plain = Guarded(KEYS).ask("OPTIONS", "/api/pull")
    assert (plain.status, dict(plain.headers)) == (204, {})


def test_a_page_may_read_the_answer_and_what_was_ignored() -> None:
    guarded = Guarded(LOCAL, {"Vary": "Accept", "X-Chaski-Ignored": "field x"})
    answer = guarded.ask(headers=[("Origin", "app://x")])
    assert answer.headers["access-control-allow-origin"] == "app://x"
    assert answer.headers["access-control-expose-headers"] == "x-chaski-ignored"
    assert answer.headers["vary"] == "Accept, Origin"
    assert answer.body == BODY
    plain = guarded.ask()
    assert plain.headers["vary"] == "Accept"
    assert not [name for name in plain.headers if name.startswith("access-control")]


def test_what_is_no_request_passes() -> None:
    passed: list[tuple[object, ...]] = []

    async def app(*arguments: object) -> None:
        passed.append(arguments)

    async def nothing(*arguments: object) -> Any: ...

    asyncio.run(Guard(app, KEYS, access_of)({"type": "lifespan"}, nothing, nothing))
    assert passed == [({"type": "lifespan"}, nothing, nothing)]
