"""What keys see and do: each key its own things only, and what the table of docs/security.md says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaski.chat.requests import Generate
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Reply, Running, running, wait_until
from tests.server.thinker import TEMPLATE, fresh, script
from tests.tiny_llama import write_tiny_llama

__all__ = ["fresh", "script"]

OWNER, OTHERS = "owner", ("other", "admin")
MINE = "an-answer-of-its-owner-0"
CHAT = "/v1/chat/completions"


def with_thinker(folder: Path) -> Path:
    """Make a store with the model `thinker`."""
    file = write_tiny_llama(folder / "thinker.gguf", chat_template=TEMPLATE)
    for _ in create(Store(folder), ModelName.parse("thinker"), Recipe(sources=[file])):
        pass
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Running]:
    """Run a server with keys of two users and of an administrator, whose model writes set answers."""
    folder = with_thinker(tmp_path_factory.mktemp("owners"))
    settings = Settings(address=SOMEWHERE, api_keys=(OWNER, "other"), admin_keys=("admin",))
    with running(settings, folder, script.open) as found:
        yield found


def ask(server: Running, key: str, method: str, path: str, body: object = None) -> Reply:
    return server.ask(method, path, body, {"Authorization": f"Bearer {key}"})


def upload(server: Running, key: str) -> str:
    """Store a file with one request, and return its id."""
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "thinker", "messages": TURNS}}
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n',
        json.dumps(line).encode(),
        b"\r\n--x--\r\n",
    ]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "multipart/form-data; boundary=x"}
    return str(server.ask("POST", "/v1/files", b"".join(parts), headers).json["id"])


def answered_batch(server: Running, key: str) -> dict[str, Any]:
    """Have the request of a new file answered, and return the batch."""
    body = {"input_file_id": upload(server, key), "endpoint": CHAT, "completion_window": "24h"}
    path = f"/v1/batches/{ask(server, key, 'POST', '/v1/batches', body).json['id']}"
    wait_until(lambda: ask(server, key, "GET", path).json["status"] == "completed")
    found: dict[str, Any] = ask(server, key, "GET", path).json
    return found


TURNS = [{"role": "user", "content": "x"}]
RESPONSE = {"model": "thinker", "input": [{"role": "user", "content": "x", "id": "msg_mine"}]}
MESSAGE = {"model": "thinker", "max_tokens": 5, "messages": TURNS}


@pytest.fixture(scope="module")
def made(server: Running) -> dict[str, str]:
    """Return the ids of what the owner has on the server."""
    chat = {"model": "thinker", "messages": TURNS, "answer_id": MINE}
    assert ask(server, OWNER, "POST", "/api/chat", chat).status == 200
    response = ask(server, OWNER, "POST", "/v1/responses", RESPONSE).json
    thread = ask(server, OWNER, "POST", "/v1/messages", MESSAGE | {"thread": {"type": "create"}}).json["id"]
    batch = answered_batch(server, OWNER)
    return {
        "answer": MINE,
        "response": response["id"],
        "item": response["output"][0]["id"],
        "thread": thread,
        "file": batch["input_file_id"],
        "batch": batch["id"],
        "output": batch["output_file_id"],
    }


LATER = {"model": "thinker", "input": "y", "previous_response_id": "{response}"}
REFERENCE = {"model": "thinker", "input": [{"type": "item_reference", "id": "{item}"}]}
CONTINUED = MESSAGE | {"thread": {"type": "continue", "previous_message_id": "{thread}"}}
USES: list[tuple[str, str, Any, int]] = [
    ("GET", "/api/answers/{answer}", None, 200),
    ("GET", "/v1/responses/{response}", None, 200),
    ("GET", "/v1/responses/{response}/input_items", None, 200),
    ("POST", "/v1/responses/{response}/cancel", None, 400),
    ("POST", "/v1/responses", LATER, 200),
    ("POST", "/v1/responses", REFERENCE, 200),
    ("POST", "/v1/responses/input_tokens", LATER, 200),
    ("POST", "/v1/messages", CONTINUED, 200),
    ("POST", "/v1/messages/count_tokens", CONTINUED, 200),
    ("GET", "/v1/files/{file}", None, 200),
    ("GET", "/v1/files/{file}/content", None, 200),
    ("GET", "/v1/files/{output}", None, 200),
    ("GET", "/v1/files/{output}/content", None, 200),
    ("GET", "/v1/batches/{batch}", None, 200),
    ("POST", "/v1/batches", {"input_file_id": "{file}", "endpoint": CHAT}, 200),
    ("POST", "/v1/batches/{batch}/cancel", None, 400),
    # The last uses, after which nothing remains.
    ("DELETE", "/api/answers/{answer}", None, 200),
    ("DELETE", "/v1/responses/{response}", None, 200),
    ("DELETE", "/v1/files/{file}", None, 200),
    ("DELETE", "/v1/files/{output}", None, 200),
]
DELETED = {
    "/api/answers/{answer}": {"stopped": True},
    "/v1/responses/{response}": {"id": "{response}", "object": "response", "deleted": True},
    "/v1/files/{file}": {"id": "{file}", "object": "file", "deleted": True},
    "/v1/files/{output}": {"id": "{output}", "object": "file", "deleted": True},
}


def filled(text: str, made: dict[str, str]) -> str:
    for name, found in made.items():
        text = text.replace(f"{{{name}}}", found)
    return text


def test_only_the_owner_uses_what_is_its_own(server: Running, made: dict[str, str]) -> None:
    for method, path, body, status in USES:
        sent = None if body is None else json.loads(filled(json.dumps(body), made))
        for key in OTHERS:
            reply = ask(server, key, method, filled(path, made), sent)
            assert reply.status == 404, (key, method, path, reply.body)
        reply = ask(server, OWNER, method, filled(path, made), sent)
        assert reply.status == status, (method, path, reply.body)
        if method == "DELETE":
            assert reply.json == json.loads(filled(json.dumps(DELETED[path]), made))
    for method, path, _, _ in USES[-4:]:
        assert ask(server, OWNER, method, filled(path, made)).status == 404


def test_lists_name_the_own_things_only(server: Running) -> None:
    made = answered_batch(server, "other")
    batch, file = made["id"], made["input_file_id"]

    def ids(key: str, path: str) -> set[str]:
        return {each["id"] for each in ask(server, key, "GET", path).json["data"]}

    assert ids("other", "/v1/batches") == {batch}
    assert ids("other", "/v1/files?purpose=batch") == {file}
    for key in (OWNER, "admin"):
        assert batch not in ids(key, "/v1/batches")
        assert file not in ids(key, "/v1/files")


def test_only_the_owner_cancels_a_running_batch(server: Running, script: Script) -> None:
    script.hold = threading.Event()
    body = {"input_file_id": upload(server, OWNER), "endpoint": CHAT, "completion_window": "24h"}
    path = f"/v1/batches/{ask(server, OWNER, 'POST', '/v1/batches', body).json['id']}"
    wait_until(lambda: ask(server, OWNER, "GET", path).json["status"] == "in_progress")
    for key in OTHERS:
        assert ask(server, key, "POST", f"{path}/cancel").status == 404
    assert ask(server, OWNER, "GET", path).json["status"] == "in_progress"
    assert ask(server, OWNER, "POST", f"{path}/cancel").json["status"] == "cancelling"
    script.hold.set()
    script.hold = None
    wait_until(lambda: ask(server, OWNER, "GET", path).json["status"] == "cancelled")
    again = ask(server, OWNER, "POST", f"{path}/cancel")
    assert again.json["error"]["message"] == "Cannot cancel a batch with status 'cancelled'."


def test_two_keys_may_draw_the_same_id(server: Running, script: Script) -> None:
    answer_id = "the-same-id-of-two-keys-1"
    for key in (OWNER, *OTHERS):
        script.pieces = (f"for {key}",)
        body = {"model": "thinker", "messages": TURNS, "answer_id": answer_id}
        assert ask(server, key, "POST", "/api/chat", body).status == 200
    for key in (OWNER, *OTHERS):
        lines = ask(server, key, "GET", f"/api/answers/{answer_id}").lines
        assert "".join(line["message"]["content"] for line in lines) == f"for {key}"


def test_each_key_has_a_salt_of_its_own(server: Running, script: Script) -> None:
    """The salt separates the caches; it depends on the key alone and does not reveal it."""
    body = {"model": "thinker", "prompt": "x", "raw": True, "stream": False}
    for headers in (
        {"Authorization": "Bearer owner"},
        {"X-Api-Key": "owner"},
        {"Authorization": "Bearer other"},
        {"Authorization": "Bearer admin"},
    ):
        assert server.post("/api/generate", body, **headers).status == 200
    first, again, *others = [
        call.options["cache_salt"] for call in script.asked if isinstance(call, Generate)
    ]
    assert first == again
    assert len({first, *others}) == 3
    assert all(len(salt) == 64 and "owner" not in salt for salt in (first, *others))


def test_a_batch_uses_the_cache_of_its_owner_s_batches_alone(server: Running, script: Script) -> None:
    for key in (OWNER, "other", OWNER):
        answered_batch(server, key)
    first, other, again = [call.options["cache_salt"] for call in script.asked if isinstance(call, Generate)]
    assert first == again != other


def test_a_server_without_keys_has_one_owner_and_one_cache(tmp_path: Path) -> None:
    script, folder = Script(), with_thinker(tmp_path)
    with running(Settings(address=SOMEWHERE), folder, script.open) as server:
        for key in ("a", "b"):
            body = {"model": "thinker", "prompt": "x", "raw": True, "stream": False}
            assert ask(server, key, "POST", "/api/generate", body).status == 200
            assert {ask(server, key, "GET", path).status for path in ("/v1/files", "/v1/batches")} == {200}
        mine = {"model": "thinker", "messages": TURNS, "answer_id": MINE}
        assert ask(server, "a", "POST", "/api/chat", mine).status == 200
        assert ask(server, "b", "GET", f"/api/answers/{MINE}").status == 200
        assert ask(server, "b", "GET", f"/v1/files/{upload(server, 'a')}").status == 200
    assert {call.options["cache_salt"] for call in script.asked if isinstance(call, Generate)} == {""}


# ---- the table of docs/security.md ----


def load(server: Running) -> None:
    body = {"model": "thinker", "prompt": "x", "raw": True, "stream": False, "keep_alive": 60}
    reply = ask(server, "admin", "POST", "/api/generate", body)
    assert (reply.status, "x-chaski-ignored" in reply.headers) == (200, False)


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/health/ready"])
def test_only_keys_see_which_models_are_busy(server: Running, path: str) -> None:
    load(server)
    assert server.get(path).json == {"status": "ok"}
    assert ask(server, "wrong", "GET", path).json == {"status": "ok"}
    shown = {"status": "ok", "models": [{"model": "thinker:latest", "users": 0}], "waiting_for_load": 0}
    for key in (OWNER, "admin"):
        assert ask(server, key, "GET", path).json == shown
    assert ask(server, "admin", "GET", "/health/live").json == {"status": "ok"}


def test_a_cluster_that_cannot_be_used_is_told_to_all(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(server)
    monkeypatch.setitem(
        server.app.state._state, "cluster", SimpleNamespace(problem=lambda: "no node answers")
    )
    for key, is_known in (("wrong", False), (OWNER, True), ("admin", True)):
        reply = ask(server, key, "GET", "/health")
        assert (reply.status, reply.headers["retry-after"]) == (503, "10")
        assert (reply.json["status"], reply.json["reason"]) == ("unavailable", "no node answers")
        assert ("models" in reply.json) is is_known
    monkeypatch.setitem(server.app.state._state, "cluster", SimpleNamespace(problem=lambda: None))
    assert server.get("/health").status == 200


@pytest.mark.parametrize("path", ["/api/ps", "/api/tags", "/slots", "/metrics", "/api/live", "/v1/models"])
def test_only_keys_see_names_of_models(server: Running, path: str) -> None:
    load(server)
    for refused in (server.get(path), ask(server, "wrong", "GET", path)):
        assert (refused.status, b"thinker" in refused.body) == (401, False)
    for key in (OWNER, "admin"):
        seen = ask(server, key, "GET", path)
        assert (seen.status, b"thinker" in seen.body) == (200, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"model": "thinker", "keep_alive": 0}),
        ("/api/generate", {"model": "thinker", "keep_alive": -1, "stream": False}),
        ("/api/chat", {"name": "thinker", "keep_alive": 0}),
        ("/api/embed", {"model": "thinker", "keep_alive": "1h"}),
    ],
)
def test_users_neither_load_nor_unload_models(server: Running, path: str, body: dict[str, object]) -> None:
    load(server)
    (loaded,) = server.services.models.loaded
    refused = ask(server, OWNER, "POST", path, body)
    assert refused.status == 403
    assert refused.error == "forbidden: loading and unloading models requires an admin key"
    assert server.services.models.loaded == [loaded]
    assert loaded.keep_alive == 60


@pytest.mark.parametrize("more", [{"prompt": "x"}, {"options": {}}, {"raw": True, "prompt": "x"}])
def test_a_user_s_keep_alive_is_ignored_and_named(server: Running, more: dict[str, object]) -> None:
    load(server)
    body = {"model": "thinker", "stream": False, "keep_alive": 0, **more}
    reply = ask(server, OWNER, "POST", "/api/generate", body)
    assert reply.status == 200
    assert reply.headers["x-chaski-ignored"] == "field keep_alive"
    assert [each.name for each in server.services.models.loaded] == ["thinker:latest"]


def test_a_key_learns_what_it_may_do(server: Running) -> None:
    for key, may in ((OWNER, False), ("admin", True)):
        assert ask(server, key, "GET", "/api/key").json == {"may_change_models": may}


def test_administrators_unload_models(server: Running) -> None:
    load(server)
    assert ask(server, "admin", "POST", "/api/generate", {"model": "thinker", "keep_alive": 0}).status == 200
    wait_until(lambda: not server.services.models.loaded)


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("", "json"),
        ("?stream=", "json"),
        ("?stream=0", "json"),
        ("?stream=false", "json"),
        ("?stream=1", "x-ndjson"),
        ("?stream=true", "x-ndjson"),
    ],
)
def test_figures_come_once_or_as_a_stream(server: Running, query: str, kind: str) -> None:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", f"/api/live{query}", headers={"Authorization": f"Bearer {OWNER}"})
        response = connection.getresponse()
        assert (response.status, response.headers.get_content_subtype()) == (200, kind)
        assert json.loads(response.readline()).keys() == {"server", "models"}


def test_a_wrong_kind_of_figures_is_refused(server: Running) -> None:
    for value in ("yes", "2", "x" * 500):
        refused = ask(server, OWNER, "GET", f"/api/live?stream={value}")
        assert (refused.status, refused.error) == (400, f"stream is {value[:40]!r}; it must be 0 or 1")
