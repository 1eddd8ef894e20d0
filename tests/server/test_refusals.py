"""Refusals of every kind: each status has a body, in the form of the API that the path belongs to."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.running import Reply, Running, running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with keys and without models."""
    settings = Settings(address=SOMEWHERE, api_keys=("user-key",), admin_keys=("admin-key",))
    with running(settings, tmp_path_factory.mktemp("none")) as found:
        yield found


def ollama_text(reply: Reply) -> str:
    return reply.error


def openai_text(reply: Reply) -> str:
    assert reply.json["error"].keys() == {"message", "type", "param", "code"}
    return str(reply.json["error"]["message"])


def anthropic_text(reply: Reply) -> str:
    assert reply.json["type"] == "error"
    assert reply.json["request_id"]
    return str(reply.json["error"]["message"])


KEY = {"Authorization": "Bearer user-key"}
LONG = {"Content-Length": str(1 << 40)}


@pytest.mark.parametrize(
    ("path", "text_of"),
    [
        ("/api/chat", ollama_text),
        ("/v1/chat/completions", openai_text),
        ("/v1/responses", openai_text),
        ("/tokenize", openai_text),
        ("/v1/messages", anthropic_text),
        ("/v1/messages/count_tokens", anthropic_text),
    ],
)
def test_refusals_have_the_form_of_their_api(
    keyed: Running, path: str, text_of: Callable[[Reply], str]
) -> None:
    tries: list[tuple[int, str, dict[str, str], str]] = [
        (403, "POST", KEY | {"Host": "evil.example"}, "evil.example"),
        (403, "POST", KEY | {"Origin": "https://evil.example"}, "https://evil.example"),
        (401, "POST", {}, "requires an API key"),
        (400, "POST", KEY, "missing request body"),
        (413, "POST", KEY | LONG, "bytes are allowed here"),
    ]
    for status, method, headers, text in tries:
        reply = keyed.ask(method, path, None, headers)
        assert (reply.status, text in text_of(reply)) == (status, True)
        assert reply.headers["content-type"].startswith("application/json")
    unloading = keyed.post(path, {"model": "x", "keep_alive": 0}, **KEY)
    assert (unloading.status, "admin key" in text_of(unloading)) == (403, True)


def test_admin_routes_say_why(keyed: Running) -> None:
    assert "admin key" in keyed.post("/api/pull", {}, **KEY).error
    refused = keyed.post("/v1/load_lora_adapter", {}, **KEY)
    assert (refused.status, refused.json["error"]["type"]) == (403, "permission_error")


def test_paths_and_methods_of_ollamas_api_that_do_not_exist(server: Running) -> None:
    """Ollama answers these without JSON."""
    missing, wrong = server.get("/api/nothing"), server.get("/api/chat")
    assert (missing.status, missing.body) == (404, b"404 page not found")
    assert (wrong.status, wrong.body) == (405, b"405 method not allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("method", "path", "text_of"),
    [
        ("POST", "/v1/v1/chat/completions", openai_text),
        ("GET", "/nothing", openai_text),
        ("GET", "/web/nothing.js", openai_text),
        ("POST", "/v1/messages/nothing", anthropic_text),
    ],
)
def test_paths_that_do_not_exist(
    server: Running, method: str, path: str, text_of: Callable[[Reply], str]
) -> None:
    reply = server.ask(method, path, {})
    assert reply.status == 404
    assert f"there is no {method} {path}; GET /docs lists all routes" in text_of(reply)


def test_methods_that_a_path_does_not_take(server: Running) -> None:
    for path, methods, text_of in (
        ("/v1/messages", "POST", anthropic_text),
        ("/v1/files/x", "DELETE, GET, HEAD", openai_text),
        ("/slots/1", "POST", openai_text),
    ):
        reply = server.ask("PATCH", path)
        assert (reply.status, reply.headers["allow"]) == (405, methods)
        assert text_of(reply) == f"there is no PATCH {path}; {path} takes {methods}"


def test_heads_have_no_body(server: Running) -> None:
    for path, status in (("/", 200), ("/v1/models", 200), ("/api/chat", 405), ("/v1/nothing", 404)):
        reply = server.ask("HEAD", path)
        assert (reply.status, reply.body) == (status, b"")


def test_clients_show_why(server: Running) -> None:
    """They take the message from the body in their API's form."""
    refused: Any = {"base_url": server.url, "max_retries": 0, "default_headers": {"Host": "evil.example"}}
    asked: Any = {"model": "guide", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    with openai.OpenAI(api_key="any", **refused | {"base_url": f"{server.url}/v1"}) as client:
        with pytest.raises(openai.PermissionDeniedError, match="CHASKI_ALLOWED_HOSTS") as found:
            client.models.list()
        assert found.value.type == "permission_error"
    told = pytest.raises(anthropic.PermissionDeniedError, match="CHASKI_ALLOWED_HOSTS")
    with anthropic.Anthropic(api_key="any", **refused) as claude, told:
        claude.messages.create(**asked)


def test_a_defect_of_any_handler(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the page is read by a handler that catches nothing."""

    def fail(name: str) -> None:
        raise AssertionError("a secret")

    monkeypatch.setattr("chaski.server.handlers.web.page_file", fail)
    reply = server.get("/web/main.js")
    assert (reply.status, openai_text(reply)) == (500, "internal server error")


def test_connections_beyond_the_limit(tmp_path: Path) -> None:
    """The one that is being answered stays open."""
    with running(Settings(address=SOMEWHERE, max_connections=1), tmp_path) as server:
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address, timeout=60) as busy:
            busy.sendall(b"GET /api/live?stream=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert busy.recv(64).startswith(b"HTTP/1.1 200")
            with socket.create_connection(address, timeout=60) as further:
                head, _, body = further.recv(4096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"CHASKI_MAX_CONNECTIONS" in body


def test_a_client_that_tries_a_web_socket_first(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Codex does so. The log must not advise to install a package, since the server uses none."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    reply = server.get("/v1/responses", **upgrade)
    assert (reply.status, openai_text(reply)) == (
        405,
        "there is no GET /v1/responses; /v1/responses takes POST",
    )
    assert caplog.records == []
