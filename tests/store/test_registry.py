"""Credentials and redirects: secrets that only the registry receives."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from chaski.errors import AccessDeniedError, RegistryError
from chaski.store.http import Access, Http
from chaski.store.registry import Registry
from tests.store.fake_registry import FakeRegistry, answer

LOCAL = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}), stall_seconds=1.0)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        running.put({"model": b"weights"})
        yield running


@pytest.fixture
def other() -> Iterator[FakeRegistry]:
    """Run another server that may store blobs."""
    with FakeRegistry().running() as running:
        running.put({"model": b"weights"})
        yield running


def weights(registry: FakeRegistry, access: Access = LOCAL) -> bytes:
    from chaski.store.manifest import Manifest

    with Registry(registry.name(), access) as client:
        layer = Manifest.parse(client.manifest()).layers[0]
        with client.blob(layer.digest, 0, layer.size, layer.size) as (_, pieces):
            return b"".join(pieces)


def sent(registry: FakeRegistry) -> list[str | None]:
    return [
        headers.get("Authorization")
        for _, path, headers in registry.requests
        if not path.startswith("/token")
    ]


def test_nothing_is_sent_unasked(registry: FakeRegistry) -> None:
    assert weights(registry) == b"weights"
    assert sent(registry) == [None, None]
    for _, _, headers in registry.requests:
        assert headers["Accept-Encoding"] == "identity"
        assert headers["User-Agent"].startswith("chaski/")
        assert "Cookie" not in headers


def test_a_token_is_fetched_and_used(registry: FakeRegistry) -> None:
    registry.token = "secret"
    assert weights(registry) == b"weights"
    assert sent(registry) == [None, "Bearer secret", "Bearer secret"]
    (token,) = [(path, headers) for _, path, headers in registry.requests if path.startswith("/token")]
    assert token[0].startswith("/token?service=reg&scope=pull&ts=")
    assert ":" in token[1]["Authorization"], "signed, see test_identity"


def test_a_password_goes_to_the_realm(registry: FakeRegistry) -> None:
    registry.token = "secret"
    assert weights(registry, Access(True, LOCAL.private_hosts, "me", "pass word")) == b"weights"
    (headers,) = [headers for _, path, headers in registry.requests if path.startswith("/token")]
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:pass word").decode()


@pytest.mark.parametrize(
    "where", ["http://{other}/token", "https://evil.example/token", "http://{other}@{own}/token"]
)
def test_a_realm_elsewhere_gets_nothing(registry: FakeRegistry, other: FakeRegistry, where: str) -> None:
    registry.token = "secret"
    registry.realm = where.format(own=registry.host, other=other.host)
    with pytest.raises(
        RegistryError, match=rf'realm host "[^"]+" does not match original host "{registry.host}"'
    ):
        weights(registry)
    assert other.requests == []
    assert not [path for _, path, _ in registry.requests if path.startswith("/token")]


def test_a_token_that_is_no_token(registry: FakeRegistry) -> None:
    for token in ("", "with\nnewline", 5, None):
        registry.token = "right"
        registry.realm = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "token", token or "x y")
            with pytest.raises(AccessDeniedError, match="unauthorized: access denied"):
                weights(registry)


def test_a_wrong_token_is_not_tried_for_ever(registry: FakeRegistry) -> None:
    registry.token = "secret"
    registry.realm = f"http://{registry.host}/v2/me/model/blobs/token"
    with pytest.raises(AccessDeniedError):
        weights(registry)
    assert len(registry.requests) < 5


def test_redirects_to_other_hosts_get_no_credentials(registry: FakeRegistry, other: FakeRegistry) -> None:
    registry.token = "secret"
    digest = next(d for d, data in registry.blobs.items() if data == b"weights")
    registry.faults.append(answer(307, {"Location": f"http://{other.host}/v2/x/y/blobs/{digest}"}))
    assert weights(registry) == b"weights"
    assert sent(registry)[-1] == "Bearer secret"
    assert sent(other) == [None]


def test_a_host_between_cannot_lend_the_credentials(registry: FakeRegistry, other: FakeRegistry) -> None:
    registry.token = "secret"
    digest = next(d for d, data in registry.blobs.items() if data == b"weights")
    registry.faults.append(answer(307, {"Location": f"http://{other.host}/v2/x/y/blobs/{digest}"}))
    other.faults.append(answer(307, {"Location": f"http://{registry.host}/v2/me/model/blobs/{digest}"}))
    assert weights(registry) == b"weights"
    # The request through the other host had none; then it was sent again directly.
    assert sent(registry) == [None, *["Bearer secret"] * 2, None, "Bearer secret"]
    assert sent(other) == [None]


def test_credentials_asked_for_by_another_host_are_not_given(
    registry: FakeRegistry, other: FakeRegistry
) -> None:
    other.token = "other"
    registry.faults.append(answer(307, {"Location": f"http://{other.host}/v2/x/y/blobs/sha256:0"}))
    with pytest.raises(AccessDeniedError):
        weights(registry, Access(True, LOCAL.private_hosts, "me", "password"))
    assert sent(other) == [None]
    assert not [path for _, path, _ in other.requests if path.startswith("/token")]


def test_https_does_not_become_http(registry: FakeRegistry) -> None:
    with (
        pytest.raises(RegistryError, match="insecure protocol http"),
        Http(Access()).request("GET", "http://x/"),
    ):
        pass


@pytest.mark.parametrize(
    "url", ["", "ftp://host/x", "file:///etc/passwd", "https://", "https://a@b/c", "//host/x"]
)
def test_addresses_that_cannot_be_used(url: str) -> None:
    with pytest.raises(RegistryError, match="cannot be used"), Http(LOCAL).request("GET", url):
        pass
