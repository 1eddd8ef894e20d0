"""Access checks: Host, Origin, keys, addresses and bodies, tested over the wire."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.env import Environment
from chaski.errors import OptionError
from chaski.server.fields.body import LARGE, SMALL, TEXT
from chaski.server.http.guard import Access
from chaski.server.routes import BODIES, ROUTES, ServedRoute
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.rights import right_of
from tests.server.running import Running, running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with keys, a further origin and a further name."""
    settings = Settings(
        address=SOMEWHERE,
        api_keys=("user-key", "other-key"),
        admin_keys=("admin-key",),
        origins=("https://*.example.org", "chrome-extension://*"),
        allowed_hosts=("models.example.org",),
    )
    with running(settings, tmp_path_factory.mktemp("none")) as found:
        yield found


# ---- names by which it is called (DNS rebinding) ----


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:11434",
        "127.0.0.1:80",
        "[::1]:11434",
        "192.168.1.7",
        "10.0.0.1:11434",
        "0.0.0.0",
        "my.localhost",
        "box.local",
        "host.docker.internal:11434",
        socket.gethostname(),
    ],
)
def test_hosts_of_this_machine(server: Running, host: str) -> None:
    assert server.get("/api/version", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:11434",
        "8.8.8.8",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "local",
        "x@localhost",
        "localhost/x",
        "localhost:99999",
        "[::1",
    ],
)
def test_foreign_hosts(server: Running, host: str) -> None:
    reply = server.get("/api/version", Host=host)
    assert reply.status == 403
    assert "CHASKI_ALLOWED_HOSTS" in reply.error


def test_hosts_that_the_settings_name(guarded: Running) -> None:
    assert guarded.get("/api/version", Host="models.example.org:443").status == 200


# ---- pages that ask (CSRF) ----


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://127.0.0.1:8443",
        "http://[::1]:80",
        "app://obsidian.md",
        "tauri://localhost",
        "vscode-webview://abc",
    ],
)
def test_origins_of_this_machine(server: Running, origin: str) -> None:
    reply = server.get("/api/version", Origin=origin)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == origin
    assert reply.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://localhost.evil.example",
        "http://evil.example/http://localhost",
        "chrome-extension://abc",
        "http://localhost@evil.example",
    ],
)
def test_foreign_origins_are_refused_before_the_handler(server: Running, origin: str) -> None:
    """A form or a simple fetch sends JSON without a preflight; it must not reach any handler."""
    body = {"model": "helper", "keep_alive": 0}
    reply = server.ask("DELETE", "/api/delete", body, {"Origin": origin, "Content-Type": "text/plain"})
    assert reply.status == 403
    assert "OLLAMA_ORIGINS" in reply.error
    assert "access-control-allow-origin" not in reply.headers
    assert server.post("/api/show", {"model": "helper"}).status == 200


def test_the_same_origin_may_ask(server: Running) -> None:
    assert server.get("/api/version", Origin="http://box.local:80", Host="box.local:80").status == 200


def test_origins_of_the_settings(guarded: Running) -> None:
    for origin in ("https://chat.example.org", "chrome-extension://abc"):
        assert guarded.get("/", Origin=origin).status == 200
    assert guarded.get("/", Origin="https://example.org.evil.example").status == 403


def test_pages_without_an_origin_need_all_origins_to_be_allowed(tmp_path: Path) -> None:
    """A sandboxed frame sends null, whatever page contains it."""
    for origins, status in ((("*",), 200), (("https://*",), 403), ((), 403)):
        with running(Settings(address=SOMEWHERE, origins=origins), tmp_path) as server:
            assert server.get("/", Origin="null").status == status
            assert server.get("/", Origin="").status == 403


def test_an_origin_may_be_written_with_a_slash_at_its_end(tmp_path: Path) -> None:
    with running(Settings(address=SOMEWHERE, origins=("https://a.example/",)), tmp_path) as server:
        assert server.get("/", Origin="https://a.example").status == 200
        assert server.get("/", Origin="https://a.example.evil").status == 403


def test_preflight(server: Running) -> None:
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Headers": "authorization"}
    reply = server.ask("OPTIONS", "/api/chat", headers=asked)
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert reply.headers["access-control-allow-headers"] == "authorization"
    assert server.ask("OPTIONS", "/api/chat", headers={"Origin": "https://evil.example"}).status == 403


# ---- keys ----


def test_without_a_key(guarded: Running) -> None:
    for path in ("/", "/health", "/api/version", "/docs", "/openapi.json"):
        assert guarded.get(path).status == 200
    refused = guarded.get("/api/tags")
    assert refused.status == 401
    assert "unauthorized" in refused.error
    for key in ("wrong", "", "user-key-and-more", "user-ke"):
        assert guarded.get("/api/tags", Authorization=f"Bearer {key}").status == 401
    assert guarded.get("/v1/models").json["error"]["type"] == "authentication_error"
    assert guarded.post("/v1/messages", {}).json["type"] == "error"


def test_keys_are_compared_in_constant_time(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is compared with all keys, even after a match, with the standard function for this."""
    compared: list[bytes] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return given == known

    monkeypatch.setattr("hmac.compare_digest", compare)
    for key, status in (("admin-key", 200), ("user-key", 200), ("nobody", 401)):
        compared.clear()
        assert guarded.get("/api/tags", Authorization=f"Bearer {key}").status == status
        known = [b"admin-key", b"user-key", b"other-key"]
        assert compared == (known[:1] if key == "admin-key" else known)


def test_with_a_key(guarded: Running) -> None:
    assert guarded.get("/api/tags", Authorization="Bearer other-key").status == 200
    assert guarded.get("/v1/models", Authorization="bearer user-key").status == 200
    assert guarded.post("/v1/messages", {}, **{"x-api-key": "user-key"}).status == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/cluster/drain"),
        ("POST", "/api/cluster/remove"),
        ("POST", "/api/cluster/replace"),
        ("DELETE", "/api/delete"),
        ("POST", f"/api/blobs/sha256:{'0' * 64}"),
    ],
)
def test_changing_models_wants_an_admin(guarded: Running, method: str, path: str) -> None:
    """Management without authentication was CVE-2025-63389."""
    assert guarded.ask(method, path, {}).status == 401
    assert guarded.ask(method, path, {}, {"Authorization": "Bearer user-key"}).status == 403
    assert guarded.ask(method, path, {}, {"Authorization": "Bearer admin-key"}).status == 400


def test_what_a_key_allows_is_told(guarded: Running, models: Path) -> None:
    assert guarded.get("/api/key").status == 401
    for key, may in (("user-key", False), ("admin-key", True)):
        assert guarded.get("/api/key", authorization=f"Bearer {key}").json == {"may_change_models": may}
        assert guarded.get("/api/key", **{"x-api-key": key}).json == {"may_change_models": may}
    with running(Settings(address=SOMEWHERE), models) as open_to_all:
        assert open_to_all.get("/api/key").json == {"may_change_models": True}


# ---- where it listens ----


def test_everybody_may_ask_only_if_that_is_meant() -> None:
    for host in ("0.0.0.0", "192.168.1.2:80", "[::]:11434", "models.example.org"):
        with pytest.raises(OptionError, match="CHASKI_OPEN=1"):
            Settings.of(Environment(host=host))
        assert Settings.of(Environment(host=host, is_open=True)).is_open
        assert Settings.of(Environment(host=host, api_keys=("k",))).has_keys
    for host in ("127.0.0.1", "localhost:0", "[::1]:5", ":7"):
        Settings.of(Environment(host=host))


# ---- bodies ----


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "missing request body"),
        (b"{", "invalid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"model": NaN}', "NaN is no number"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"model": ' + b"9" * 5000 + b"}", "invalid JSON"),
        (b'{"model": "guide", "options": {"num_ctx": 1e999}}', "1e999"),
        (b'{"model": "\xff"}', "invalid JSON"),
    ],
)
def test_bodies_that_are_no_requests(server: Running, body: bytes, text: str) -> None:
    reply = server.post("/api/generate", body)
    assert reply.status == 400
    assert text in reply.error


@pytest.mark.parametrize(
    ("path", "most"),
    [
        *((path, LARGE) for path in ("/api/chat", "/v1/chat/completions", "/v1/messages", "/v1/responses")),
        *((path, TEXT) for path in ("/api/create", "/api/tokenize")),
        *((path, SMALL) for path in ("/v1/batches", "/api/show", "/api/pull", "/api/copy", "/detokenize")),
        ("/slots/0", SMALL),
    ],
)
def test_bodies_have_a_limit(server: Running, path: str, most: int) -> None:
    """It tests bodies with a length, and chunked ones."""
    reply = server.ask("POST", path, None, {"Content-Length": str(most + 1)})
    assert reply.status == 413
    assert f"has {most + 1} bytes; at most {most} bytes are allowed here" in reply.body.decode()
    piece = b" " * (1 << 19)
    chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head.encode())
        for _ in range(most // len(piece) + 1):
            client.sendall(chunk)
        assert client.recv(64).startswith(b"HTTP/1.1 413")


def test_every_body_has_a_limit() -> None:
    """Only routes that accept texts or images need more than 1 MB."""
    large = {path for (_, path), body in BODIES.items() if body.most > SMALL}
    inputs = ("input", "prompt", "messages", "documents", "content", "template", "input_prefix")
    assert large == {path for (_, path), body in BODIES.items() if not body.fields.keys().isdisjoint(inputs)}


def test_content_types_do_not_matter(server: Running) -> None:
    reply = server.ask("POST", "/api/show", {"model": "guide"}, {"Content-Type": "text/plain"})
    assert reply.status == 200


def test_no_path_of_this_disk_in_errors(server: Running, models: Path) -> None:
    digest = next((models / "blobs").iterdir()).name
    tries = [
        server.post("/api/show", {"model": "/etc/passwd"}),
        server.post("/api/show", {"model": "./guide.gguf"}),
        server.post("/api/generate", {"model": "../../etc/passwd", "prompt": "x"}),
        server.post("/api/create", {"model": "new", "files": {"/etc/passwd": digest}}),
        server.post("/api/create", {"model": "new", "files": {"a.gguf": "sha256:../../../etc/passwd"}}),
        server.post("/api/create", {"model": "new", "from": "/etc/passwd"}),
        server.ask("HEAD", "/api/blobs/sha256:..%2f..%2fetc%2fpasswd"),
    ]
    for reply in tries:
        assert reply.status in (400, 404)
        assert str(models).encode() not in reply.body
        assert b"/blobs" not in reply.body


def test_headers_have_a_limit(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                client.sendall(b"x" * (1 << 16))
        with contextlib.suppress(ConnectionError):
            assert client.recv(64).startswith(b"HTTP/1.1 400")
    assert server.get("/").status == 200


# ---- who may call which route ----


def asked(guarded: Running, route: ServedRoute, **headers: str) -> int:
    path = re.sub(r"\{[^}]*\}", "x", route.path)
    return guarded.ask(route.method, path, headers=headers).status


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_route_is_for_those_whom_the_table_names(guarded: Running, route: ServedRoute) -> None:
    right = right_of(route.method, route.path)
    assert (asked(guarded, route) == 401) == (right is not Access.PUBLIC)
    user = asked(guarded, route, Authorization="Bearer user-key")
    assert user != 401
    assert (user == 403) == (right is Access.ADMIN)
    assert asked(guarded, route, Authorization="Bearer admin-key") not in (401, 403)


def test_no_public_route_changes_anything() -> None:
    assert not [route.path for route in ROUTES if route.access is Access.PUBLIC and route.method != "GET"]


def test_a_path_without_a_route_wants_a_key(guarded: Running) -> None:
    for path in ("/api/delete/x", "/nothing", "/api/version/"):
        assert guarded.get(path).status == 401
