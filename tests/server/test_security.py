"""Attacks on similar servers: each class of advisories that no other test covers, over the wire.

docs/security.md names the test of each class.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.formats.gguf import open_gguf
from chaski.server.settings import Settings
from chaski.text.tokenizer import load_tokenizer
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import write_tiny_llama

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with an empty, writable store; it may pull from this machine."""
    folder = tmp_path_factory.mktemp("security")
    settings = Settings(address=SOMEWHERE, private_registries=frozenset({"127.0.0.1"}))
    with running(settings, folder, Script().open) as found:
        yield found


@pytest.fixture
def tiny(tmp_path: Path) -> bytes:
    return write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()


def upload(server: Running, data: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert server.post(f"/api/blobs/{digest}", data).status in (200, 201)
    return digest


def last_error(server: Running, body: dict[str, Any], path: str = "/api/create") -> str:
    reply = server.post(path, body)
    return reply.error if reply.status >= 400 else reply.lines[-1]["error"]


# ---- files ----


def test_archives_are_not_unpacked(store: Running) -> None:
    """An archive with ../ in its names wrote outside its folder (CVE-2024-45436, CVE-2024-7773)."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("../../escaped.txt", "x")
    digest = upload(store, data.getvalue())
    for name in ("a.zip", "a.gguf", "model.safetensors", "pytorch_model.bin"):
        assert last_error(store, {"model": "new", "files": {name: digest}})
    assert not list(Path(store.services.catalog.store.blobs.folder).parents[2].rglob("escaped.txt"))


def test_pickles_are_not_loaded(store: Running, tmp_path: Path) -> None:
    """A checkpoint as a pickle can run any code."""
    code = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    digest = upload(store, code)
    for name in ("pytorch_model.bin", "consolidated.00.pth", "model.gguf"):
        assert last_error(store, {"model": "new", "files": {name: digest}})
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("quantize", [None, "Q8_0"])
def test_tensors_beyond_the_end_of_a_file_are_not_read(
    store: Running, tiny: bytes, quantize: str | None
) -> None:
    """Memory after the file was quantized into a model, and could be pushed (CVE-2026-7482)."""
    cut = tiny[:-4096]
    body = {"model": "leak", "files": {"a.gguf": upload(store, cut)}} | (
        {"quantize": quantize} if quantize else {}
    )
    assert "truncated" in last_error(store, body)
    assert [each["name"] for each in store.get("/api/tags").json["models"]] == ["guide:latest"]


@pytest.mark.parametrize("token", ["<0x-1>", "<0xFFF>", "<0xZZ>"])
def test_bad_byte_tokens(tmp_path: Path, token: str) -> None:
    """A byte token of -1 wrote before a table (llama.cpp 25969)."""
    path = write_tiny_llama(tmp_path / "bad.gguf")
    metadata: dict[str, Any] = dict(open_gguf(path).metadata)
    tokens = ["<unk>", "<s>", "</s>", token, "▁a"]
    metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 5,
        "tokenizer.ggml.token_type": [2, 3, 3, 6, 1],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for name in ("merges", "pre", "eot_token_id"):
        del metadata[f"tokenizer.ggml.{name}"]
    from chaski.errors import TokenizerError
    from chaski.formats.gguf_writer import write_gguf

    write_gguf(path, metadata, {})
    with pytest.raises(TokenizerError):
        load_tokenizer(open_gguf(path).metadata).encode("a\n")


# ---- registries ----


def test_a_compressed_manifest_is_not_unpacked(store: Running, tiny: bytes) -> None:
    """A reply of a kilobyte became gigabytes (CVE-2024-12886). Compressed replies are refused."""
    with FakeRegistry().running() as registry:
        good = registry.put({"model": tiny})
        asked = {"model": f"http://{registry.host}/me/model:1", "insecure": True}
        for body in (gzip.compress(b"[" * (64 << 20)), gzip.compress(good)):
            registry.manifests["me/model:1"] = body
            registry.manifest_headers = {"Content-Encoding": "gzip"}
            assert "compressed its answer" in last_error(store, asked, "/api/pull")
            registry.manifest_headers = {}
            assert "manifest" in last_error(store, asked, "/api/pull")
        assert not [path for _, path, _ in registry.requests if "/blobs/" in path]


@pytest.mark.parametrize(
    "digest", ["sha256:../../../../tmp/x", "sha256:" + "0" * 63, "../x", "sha512:" + "0" * 64]
)
def test_digests_of_a_hostile_manifest_lead_nowhere(store: Running, tiny: bytes, digest: str) -> None:
    """They were used as paths (CVE-2024-37032, CVE-2026-7020)."""
    with FakeRegistry().running() as registry:
        manifest = registry.put({"model": tiny})
        good = re.findall(rb"sha256:[0-9a-f]{64}", manifest)[-1]
        registry.manifests["me/model:1"] = manifest.replace(good, digest.encode())
        error = last_error(
            store, {"model": f"http://{registry.host}/me/model:1", "insecure": True}, "/api/pull"
        )
        assert "manifest" in error
        assert not [path for _, path, _ in registry.requests if "/blobs/" in path]
    assert [each["name"] for each in store.get("/api/tags").json["models"]] == ["guide:latest"]


def test_a_foreign_realm_gets_no_token(store: Running, tiny: bytes) -> None:
    """Credentials were sent to any host that a registry named (CVE-2025-51471)."""
    with FakeRegistry().running() as registry, FakeRegistry().running() as other:
        registry.put({"model": tiny})
        registry.token, registry.realm = "t", f"http://localhost:{other.host.rpartition(':')[2]}/token"
        asked = {"model": f"http://{registry.host}/me/model:1", "insecure": True}
        error = last_error(store, asked | {"username": "me", "password": "secret"}, "/api/pull")
        assert "does not match original host" in error
        assert not other.requests


def test_a_redirect_into_a_private_network_is_not_followed(
    tmp_path: Path, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull could reach what only the server can (CVE-2026-5530)."""
    with FakeRegistry().running() as registry:
        manifest = registry.put({"model": tiny})
        assert manifest
        port = registry.host.rpartition(":")[2]
        registry.faults.extend(
            [
                lambda handler, data, begin, end: handler.reply(
                    307, b"", {"Location": f"http://localhost:{port}/x"}
                )
            ]
            * 9
        )
        settings = Settings(address=SOMEWHERE, private_registries=frozenset({"127.0.0.1"}))
        with running(settings, tmp_path / "store", Script().open) as server:
            asked = {"model": f"http://{registry.host}/me/model:1", "insecure": True}
            error = last_error(server, asked, "/api/pull")
        assert "private" in error
        assert not [path for _, path, _ in registry.requests if path == "/x"]


# ---- requests ----


@pytest.mark.parametrize(
    "options",
    [
        {"num_keep": -1},
        {"num_ctx": -1},
        {"num_thread": -4},
        {"num_keep": 1e400},
        {"top_k": True},
        {"repeat_penalty": -1},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {str(10**9): 1}},
        {"draft_num_predict": -1},
    ],
)
def test_numbers_that_would_break_the_engine(server: Running, options: dict[str, Any]) -> None:
    """A negative count wrote outside the cache (CVE-2026-21869)."""
    reply = server.post("/api/chat", {"model": "guide", "messages": QUESTION, "options": options})
    assert reply.status == 400


def test_an_absurd_context_takes_no_memory(server: Running) -> None:
    options = {"num_ctx": 2**40, "num_predict": 1}
    assert (
        server.post("/api/chat", {"model": "guide", "messages": QUESTION, "options": options}).status == 200
    )
    assert {loaded.info.context for loaded in server.services.models.loaded} == {1024}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "status"),
    [
        (_nested(300), 400),
        ({"enum": ["x" * 100] * 10_000}, 400),
        ({"$ref": "http://127.0.0.1/x"}, 400),
        ({"$ref": "file:///etc/passwd"}, 400),
        ({"allOf": [{"properties": {f"p{i}": {}}} for i in range(5000)]}, 400),
        ({"type": "string", "pattern": "^(a+)+$"}, 200),
        ({"type": "string", "pattern": "^(a|b)*a(a|b){30}$"}, 200),
        ({"type": "array", "minItems": 10**9}, 200),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, 400),
        ({"$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, 200),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_schemas(server: Running, schema: dict[str, Any], status: int) -> None:
    """Grammars overflowed and ran forever (llama.cpp 22234)."""
    started = time.monotonic()
    options = {"num_predict": 4}
    asked = {"model": "guide", "messages": QUESTION, "format": schema, "options": options, "stream": False}
    assert server.post("/api/chat", asked).status == status
    assert time.monotonic() - started < 10
    assert server.get("/health").status == 200


def test_text_of_users_never_becomes_code(server: Running) -> None:
    """A template in a message or tool is text (CVE-2024-34359 concerns templates of files)."""
    text = "{{ 7 * 7 }}{% for x in range(10) %}{{ x }}{% endfor %}{{ .System }}"
    count = server.post(
        "/v1/messages/count_tokens", {"model": "guide", "messages": [{"role": "user", "content": text}]}
    )
    tokens = server.post("/api/tokenize", {"model": "guide", "content": text}).json["tokens"]
    assert count.json["input_tokens"] > len(tokens)


def test_nothing_but_http_is_spoken(server: Running) -> None:
    """No RPC for tensors (GHSA-wcr5-566p-9cwj), no updater (CVE-2026-42248), no WebSocket."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert (
        server.ask("GET", "/api/chat", headers=upgrade | {"Sec-WebSocket-Key": "x" * 22 + "=="}).status == 405
    )
    paths = {route.path for route in server.app.routes}
    assert not [path for path in paths if re.search("rpc|update|exec|debug|admin", path)]


# ---- the page that says so ----


def test_the_tests_of_the_page_exist() -> None:
    page = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 40
    for path, test in named:
        text = (ROOT / "tests" / path).read_text()
        assert not test or f"def {test}(" in text, f"{path}::{test}"
