"""What a registry may answer: errors, ranges and places of uploads, and demands for credentials."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chaski.errors import AccessDeniedError, ModelNotFoundError, RegistryError
from chaski.names import Digest, ModelName
from chaski.store import registry as module
from chaski.store.http import Access, Http, TemporaryError, host_of, range_headers
from chaski.store.registry import Registry, SplitModelError
from tests.store.fake_registry import FakeRegistry, Handler, answer

LOCAL = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}), stall_seconds=1.0)
NOTHING = Digest("0" * 64)


@pytest.fixture
def client(registry: FakeRegistry) -> Iterator[Registry]:
    with Registry(registry.name(), LOCAL) as running:
        yield running


@contextmanager
def answering(reply: Callable[[Handler], None]) -> Iterator[None]:
    """Answer every request this way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "_answer", reply)
        yield


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"errors": [{"message": "too many layers"}, {"message": "more"}]}, ": too many layers"),
        ({"error": "no such tag"}, ": no such tag"),
        ({"error": "x" * 300}, ": " + "x" * 200),
        ({"error": 5}, ""),
        ({"errors": []}, ""),
        ({"errors": {}}, ""),
        ({"message": "other"}, ""),
        ([], ""),
        (None, ""),
        ("<html>" + " " * (1 << 20), ""),
    ],
)
def test_the_reason_of_a_registry_is_shown(
    registry: FakeRegistry, client: Registry, body: object, reason: str
) -> None:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    for status, prefix in ((410, ""), (400, "pull model manifest: ")):
        with (
            answering(lambda handler, status=status: handler.reply(status, data)),  # type: ignore[misc]
            pytest.raises(RegistryError) as error,
        ):
            client.manifest()
        assert str(error.value) == f"{prefix}{registry.host} answered {status}{reason}"
        assert not isinstance(error.value, SplitModelError)


def test_weights_in_parts_are_told_from_other_failures(registry: FakeRegistry, client: Registry) -> None:
    body = b'{"error":"This is a Sharded model"}'
    with answering(lambda handler: handler.reply(400, body)), pytest.raises(SplitModelError) as error:
        client.manifest()
    host = registry.host
    assert str(error.value) == f"pull model manifest: {host} answered 400: This is a Sharded model"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_told_from_other_failures(client: Registry, status: int) -> None:
    with (
        answering(lambda handler: handler.reply(status, b'{"error":"details"}')),
        pytest.raises(AccessDeniedError, match=r"^unauthorized: access denied$"),
    ):
        client.manifest()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_failures_that_may_pass(registry: FakeRegistry, client: Registry, status: int) -> None:
    with (
        answering(lambda handler: handler.reply(status, b"")),
        pytest.raises(TemporaryError, match=f"^{registry.host} answered {status}$"),
    ):
        client.manifest()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("me/model:q4", "; a repository of Hugging Face is hf.co/me/model:q4"),
        ("me/model", "; a repository of Hugging Face is hf.co/me/model"),
        ("model:q4", ""),
        ("hf.co/me/model:q4", ""),
    ],
)
def test_a_missing_model_may_be_on_the_hub(text: str, hint: str) -> None:
    assert module._elsewhere(ModelName.parse(text)) == hint


def test_a_missing_manifest(client: Registry) -> None:
    with pytest.raises(ModelNotFoundError, match=r"^pull model manifest: file does not exist$"):
        client.manifest()


def test_the_manifest_is_asked_for_in_its_own_type(registry: FakeRegistry, client: Registry) -> None:
    data = registry.put({"model": b"weights"})
    assert client.manifest() == data
    client.put_manifest(b"{}")
    (_, asked, headers), (method, put, put_headers) = registry.requests
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    assert (asked, headers["Accept"]) == ("/v2/me/model/manifests/1", kind)
    assert (method, put, put_headers["Content-Type"]) == ("PUT", asked, kind)
    assert registry.manifests["me/model:1"] == b"{}"


@pytest.mark.parametrize(("status", "expected"), [(200, True), (307, True), (404, False)])
def test_whether_a_blob_is_there(client: Registry, status: int, expected: bool) -> None:
    headers = {"Location": "http://other.example/"}
    with answering(lambda handler: handler.reply(status, b"", headers)):
        assert client.has_blob(NOTHING) is expected


def test_other_answers_about_a_blob_are_errors(client: Registry) -> None:
    with answering(lambda handler: handler.reply(405, b"")), pytest.raises(RegistryError, match="405"):
        client.has_blob(NOTHING)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Range": "0-9"}, 10),
        ({"Range": "bytes=0-9"}, 10),
        ({"Range": "0-0"}, 0),  # as registries write it for no bytes
        ({"Range": "1-9"}, 0),
        ({"Range": "0-x"}, 0),
        ({}, 0),
    ],
)
def test_how_much_of_an_upload_has_arrived(
    registry: FakeRegistry, client: Registry, headers: dict[str, str], expected: int
) -> None:
    url = f"http://{registry.host}/v2/x/blobs/uploads/u1?state=1"
    with answering(lambda handler: handler.reply(204, b"", headers)):
        assert client.uploaded(url) == (expected, url)
    moved = {**headers, "Location": "../u2"}
    with answering(lambda handler: handler.reply(204, b"", moved)):
        assert client.uploaded(url) == (expected, f"http://{registry.host}/v2/x/blobs/u2")


@pytest.mark.parametrize(("query", "joint"), [("", "?"), ("?state=1", "&")])
def test_the_end_of_an_upload(registry: FakeRegistry, client: Registry, query: str, joint: str) -> None:
    seen: list[tuple[str, str, str | None]] = []

    def reply(handler: Handler) -> None:
        seen.append((handler.command, handler.path, handler.headers.get("Content-Length")))
        handler.reply(201, b"")

    with answering(reply):
        client.finish_upload(f"http://{registry.host}/u1{query}", NOTHING)
    assert seen == [("PUT", f"/u1{query}{joint}digest=sha256%3A{NOTHING.hex}", "0")]


# ---- credentials ----


def with_challenge(challenge: str, token: object = None) -> Callable[[Handler], None]:
    def reply(handler: Handler) -> None:
        handler.registry.requests.append((handler.command, handler.path, dict(handler.headers.items())))
        if handler.path.startswith("/token"):
            handler.reply(200, json.dumps(token).encode())
        elif "Authorization" in handler.headers:
            handler.reply(200, b"{}")
        else:
            handler.reply(401, b"", {"WWW-Authenticate": challenge})

    return reply


def asked(registry: FakeRegistry) -> list[tuple[str, str | None]]:
    return [(path, headers.get("Authorization")) for _, path, headers in registry.requests]


USER = Access(
    insecure=True, private_hosts=LOCAL.private_hosts, username="me", password="pass", stall_seconds=1.0
)
BASIC = "Basic " + base64.b64encode(b"me:pass").decode()


@pytest.mark.parametrize("kind", ["Basic", "basic", "BASIC"])
def test_a_password_is_given_when_the_registry_asks_for_it(registry: FakeRegistry, kind: str) -> None:
    with (
        answering(with_challenge(f'{kind} realm="x"')),
        Registry(registry.name(), USER) as client,
    ):
        assert client.manifest() == b"{}"
        client.has_blob(NOTHING)
    assert [given for _, given in asked(registry)] == [None, BASIC, BASIC]


def test_a_missing_password_is_empty(registry: FakeRegistry) -> None:
    access = Access(insecure=True, private_hosts=LOCAL.private_hosts, username="me")
    with answering(with_challenge('Basic realm="x"')), Registry(registry.name(), access) as client:
        client.manifest()
    assert asked(registry)[-1][1] == "Basic " + base64.b64encode(b"me:").decode()


@pytest.mark.parametrize(
    "challenge", ["", 'Basic realm="x"', 'Digest realm="http://{host}/token"', "Bearer x"]
)
def test_demands_that_cannot_be_met(registry: FakeRegistry, challenge: str) -> None:
    with (
        answering(with_challenge(challenge.format(host=registry.host))),
        Registry(registry.name(), LOCAL) as client,
        pytest.raises(AccessDeniedError, match=r"^unauthorized: access denied$"),
    ):
        client.manifest()
    assert len(registry.requests) == 1


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ('realm="http://{host}/token"', "ts="),
        ('realm="http://{host}/token?a=b#part",service="r g"', "a=b&service=r+g&ts="),
        ('realm="http://{host}/token",scope="one two"', "scope=one&scope=two&ts="),
    ],
)
@pytest.mark.parametrize(
    "token", [{"token": "t1"}, {"access_token": "t1"}, {"token": "", "access_token": "t1"}]
)
def test_a_token_is_asked_for_as_the_registry_says(
    registry: FakeRegistry, fields: str, query: str, token: dict[str, str]
) -> None:
    challenge = f"bearer {fields.format(host=registry.host)}"
    with answering(with_challenge(challenge, token)), Registry(registry.name(), USER) as client:
        client.manifest()
    (_, first), (path, given), (_, last) = asked(registry)
    assert path.startswith(f"/token?{query}")
    assert "#" not in path
    assert (first, given, last) == (None, BASIC, "Bearer t1")


@pytest.mark.parametrize("token", [{"token": 5}, {"token": "a b"}, {"token": "a\u00e9"}, {}, [], "t1"])
def test_tokens_that_are_none(registry: FakeRegistry, token: Any) -> None:
    with (
        answering(with_challenge(f'Bearer realm="http://{registry.host}/token"', token)),
        Registry(registry.name(), USER) as client,
        pytest.raises(AccessDeniedError, match=r"^unauthorized: access denied$"),
    ):
        client.manifest()


def test_an_upload_does_not_start_again_by_itself_for_credentials(registry: FakeRegistry) -> None:
    with (
        answering(with_challenge('Basic realm="x"')),
        Registry(registry.name(), USER) as client,
        pytest.raises(
            TemporaryError, match=f"^{registry.host} asked for credentials in the middle of an upload$"
        ),
    ):
        client.upload(f"http://{registry.host}/u1", 0, 3, iter([b"abc"]))


@pytest.mark.parametrize("prefix", ["http://{host}.evil.example/", "https://{host}/", "http://{host}@evil/"])
def test_uploads_elsewhere_get_no_credentials(registry: FakeRegistry, prefix: str) -> None:
    client = Registry(registry.name(), USER)
    with client:
        client._authorization = BASIC
        assert client._own(f"http://{registry.host}/u1") == {"Authorization": BASIC}
        assert client._own(prefix.format(host=registry.host)) == {}


# ---- requests ----


def test_a_range_is_asked_for_unless_it_is_the_whole_file() -> None:
    assert range_headers(0, 10, 10) == {}
    assert range_headers(0, 9, 10) == {"Range": "bytes=0-8"}
    assert range_headers(1, 10, 10) == {"Range": "bytes=1-9"}


def test_an_error_shows_the_host_and_no_password() -> None:
    assert host_of("https://user:secret@models.example:8443/v2/x") == "models.example:8443"
    with (
        pytest.raises(RegistryError, match=r"^the address 'x{199} cannot be used$"),
        Http(LOCAL).request("GET", "x" * 300),
    ):
        pass


@pytest.mark.parametrize(
    ("content_range", "is_accepted"),
    [
        ("bytes 10-19/100", True),
        ("bytes 10-14/100", True),
        ("bytes 10-19/*", True),
        ("bytes 10-20/100", False),
        ("bytes 9-19/100", False),
        ("bytes 11-19/100", False),
        ("bytes 10-19/101", False),
        ("bits 10-19/100", False),
        ("", False),
    ],
)
def test_only_the_range_that_was_asked_for_is_accepted(
    registry: FakeRegistry, client: Registry, content_range: str, is_accepted: bool
) -> None:
    digest = Digest.parse(registry.put_blob("x", bytes(100))["digest"])
    registry.faults.append(answer(206, {"Content-Range": content_range}, b"part"))
    with client.get(f"http://{registry.host}/v2/me/model/blobs/{digest}", {}) as reply:
        if is_accepted:
            begin, pieces = reply.part(10, 20, 100)
            assert (begin, b"".join(pieces)) == (10, b"part")
            return
        with pytest.raises(TemporaryError) as error:
            reply.part(10, 20, 100)
    shown = f"{content_range!r}"
    assert str(error.value) == f"{registry.host} sent the range {shown} for 10-19/100"


def test_a_chain_of_redirects_has_an_end(registry: FakeRegistry, client: Registry) -> None:
    data = registry.put_blob("x", b"weights")
    here = f"/v2/me/model/blobs/{data['digest']}"
    registry.faults.extend([answer(302, {"Location": here})] * 9)
    with client.blob(Digest.parse(data["digest"]), 0, 7, 7) as (begin, pieces):
        assert (begin, b"".join(pieces)) == (0, b"weights")
    registry.faults.extend([answer(302, {"Location": here})] * 10)
    with (
        pytest.raises(RegistryError, match=f"^{registry.host} redirects without end$"),
        client.blob(Digest.parse(data["digest"]), 0, 7, 7),
    ):
        pass


@pytest.mark.parametrize("size", [10, 11])
def test_a_short_text_has_a_limit(registry: FakeRegistry, client: Registry, size: int) -> None:
    digest = registry.put_blob("x", bytes(size))["digest"]
    with client.get(f"http://{registry.host}/v2/me/model/blobs/{digest}", {}) as reply:
        if size == 10:
            assert reply.read(10) == bytes(10)
            return
        with pytest.raises(RegistryError) as error:
            reply.read(10)
    assert str(error.value) == f"{registry.host} sent more than 10 bytes where a short text belongs"
