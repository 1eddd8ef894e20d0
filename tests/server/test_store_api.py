"""Changing the store over HTTP: blobs, create, copy, delete, and addresses that a pull may not reach."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.bundled import bundled_model
from tests.rewriting import write_split
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.store.fake_registry import FakeRegistry
from tests.store.stores import assert_valid
from tests.tiny_llama import write_tiny_llama

CHECKPOINT = Path(__file__).parents[1] / "data" / "checkpoints" / "qwen2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE), tmp_path_factory.mktemp("store"), Script().open) as found:
        yield found


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_llama(tmp_path_factory.mktemp("blob") / "tiny.gguf").read_bytes()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def names(server: Running) -> set[str]:
    return {model["name"] for model in server.get("/api/tags").json["models"]}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files")
@pytest.mark.parametrize("by", ["this server", "another program"])
def test_a_deleted_model_gives_its_disk_space_back(
    server: Running, blob: bytes, tmp_path: Path, by: str
) -> None:
    data = write_tiny_llama(tmp_path / "tiny.gguf", general__name=by).read_bytes()
    server.post(f"/api/blobs/{digest_of(data)}", data)
    assert server.post("/api/create", {"model": "large", "files": {"a.gguf": digest_of(data)}}).status == 200
    catalog = server.app.state.services.catalog
    _, info = catalog.look_up("large")
    assert info.tokenizer.token_bytes(40)  # it reads texts of tokens from the model's file
    del info
    if by == "this server":
        assert server.ask("DELETE", "/api/delete", {"model": "large"}).status == 200
    else:
        catalog.store.remove(ModelName.parse("large"))
        assert "large:latest" not in names(server)
    open_files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [path for path in open_files if digest_of(data)[7:] in path] == []


def test_the_file_of_an_encoder_is_shown(server: Running, blob: bytes, tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "clip",
        "clip.vision.projection_dim": 64,
        "clip.has_vision_encoder": True,
    }
    one = {"v.weight": (np.ones((1, 32), np.float32), QuantType.F32)}
    write_gguf(tmp_path / "projector.gguf", metadata, one)
    projector = (tmp_path / "projector.gguf").read_bytes()
    for data in (blob, projector):
        server.post(f"/api/blobs/{digest_of(data)}", data)
    files = {"tiny.gguf": digest_of(blob), "projector.gguf": digest_of(projector)}
    assert server.post("/api/create", {"model": "vision", "files": files}).lines[-1]["status"] == "success"
    shown = server.post("/api/show", {"model": "vision"}).json
    assert shown["projector_info"].items() >= metadata.items()
    assert shown["details"]["families"] == ["llama", "clip"]
    # The file does not name its kind of encoder, so there is none.
    assert shown["capabilities"] == ["completion"]
    server.ask("DELETE", "/api/delete", {"model": "vision"})


def test_the_life_of_a_model(server: Running, blob: bytes) -> None:
    digest = digest_of(blob)
    assert server.ask("HEAD", f"/api/blobs/{digest}").status == 404
    assert server.post(f"/api/blobs/{digest}", blob).status == 201
    assert server.post(f"/api/blobs/{digest}", blob).status == 200
    assert server.ask("HEAD", f"/api/blobs/{digest}").status == 200

    asked = {
        "model": "mine",
        "files": {"tiny.gguf": digest},
        "system": "Be kind.",
        "parameters": {"top_k": 3},
    }
    statuses = [line["status"] for line in server.post("/api/create", asked).lines]
    assert statuses[0] == "parsing GGUF"
    assert statuses[-2:] == ["writing manifest", "success"]
    child = {"model": "child", "from": "mine", "system": "Be brief.", "stream": False}
    assert server.post("/api/create", child).json == {"status": "success"}
    shown = server.post("/api/show", {"model": "child"}).json
    assert (shown["system"], shown["parameters"].split()) == ("Be brief.", ["top_k", "3"])

    assert server.post("/api/copy", {"source": "mine", "destination": "you/yours:v1"}).status == 200
    assert names(server) == {"mine:latest", "child:latest", "you/yours:v1", "guide:latest"}
    for name in ("mine", "child", "you/yours:v1"):
        assert server.ask("DELETE", "/api/delete", {"model": name}).status == 200
    assert server.ask("DELETE", "/api/delete", {"model": "mine"}).status == 404
    assert names(server) == {"guide:latest"}
    assert_valid(server.services.catalog.store)
    assert not list(server.services.catalog.store.blobs)


def test_the_bundled_model_is_one_of_the_store(server: Running) -> None:
    """On a fresh machine it appears in every list, by any case, and as the source of other models."""
    (listed,) = server.get("/api/tags").json["models"]
    assert (listed["name"], listed["details"]["format"]) == ("guide:latest", "gguf")
    assert listed["details"]["families"] == ["llama"]
    assert [model["id"] for model in server.get("/v1/models").json["data"]] == ["guide:latest"]
    assert server.get("/v1/models/GUIDE").json["id"] == "GUIDE"
    shown = [server.post("/api/show", {"model": name}).json for name in ("guide", "GUIDE", "Guide:Latest")]
    assert shown[0] == shown[1] == shown[2]
    assert shown[0]["details"] == listed["details"]
    assert server.post("/api/show", {"model": "guide:1b"}).status == 404
    child = {"model": "child", "from": "guide", "system": "Be brief.", "stream": False}
    assert server.post("/api/create", child).json == {"status": "success"}
    assert server.post("/api/show", {"model": "child"}).json["system"] == "Be brief."
    assert server.post("/api/copy", {"source": "Guide", "destination": "twin"}).status == 200
    twin = next(each for each in server.get("/api/tags").json["models"] if each["name"] == "twin:latest")
    assert (twin["digest"], twin["size"]) == (listed["digest"], listed["size"])
    reply = server.ask("DELETE", "/api/delete", {"model": "guide"})
    assert (reply.status, "cannot be deleted" in reply.error) == (400, True)
    for name in ("child", "twin"):
        assert server.ask("DELETE", "/api/delete", {"model": name}).status == 200
    assert names(server) == {"guide:latest"}


def test_no_model_gets_the_name_of_the_bundled_one(server: Running) -> None:
    refusal = "'guide' is a part of chaski; choose another name for your model"
    for path, body in (
        ("copy", {"source": "guide", "destination": "guide"}),
        ("create", {"model": "guide", "from": "guide", "stream": False}),
        ("pull", {"model": "guide", "stream": False}),
    ):
        reply = server.post(f"/api/{path}", body)
        assert (reply.status, reply.error) == (400, refusal), path
    for what in ("source", "destination"):
        body = {"source": "guide", "destination": "copy", what: "a b"}
        assert server.post("/api/copy", body).error == f'{what} "a b" is invalid'


def test_names_in_errors_are_short_where_clients_allow_it(server: Running) -> None:
    chat = {"model": "guide", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    tools = [{"type": "function", "function": {"name": "f"}}]
    # Clients of Ollama expect the full name.
    full = "registry.ollama.ai/library/guide:latest does not support tools"
    assert server.post("/api/chat", {**chat, "tools": tools}).error == full
    reply = server.post("/v1/chat/completions", {**chat, "tools": tools})
    assert reply.json["error"]["message"] == "guide:latest does not support tools"
    named = [{"name": "f", "input_schema": {"type": "object"}}]
    reply = server.post("/v1/messages", {**chat, "tools": named})
    assert reply.json["error"]["message"] == "guide:latest does not support tools"


def test_blobs_are_what_their_names_say(server: Running) -> None:
    """A digest that led to another path was CVE-2024-37032."""
    reply = server.post(f"/api/blobs/{digest_of(b'right')}", b"wrong")
    assert reply.status == 400
    assert "digest mismatch" in reply.error
    for name in ("sha256:..%2f..%2fx", "sha256:" + "g" * 64, "sha256-" + "0" * 63, "md5:0"):
        assert server.post(f"/api/blobs/{name}", b"x").status in (400, 404)
    assert not list(server.services.catalog.store.blobs)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "neither 'from' or 'files' was specified"),
        ({"model": "a b"}, "invalid model name"),
        ({"files": {"../a.gguf": "sha256:" + "0" * 64}}, "file path must be relative"),
        ({"files": {"a.gguf": "sha256:0"}}, "invalid digest format"),
        ({"from": "x", "adapters": {"a": "b"}}, "invalid digest format"),
        ({"from": "x", "parameters": {"top_k": "many"}}, 'option "top_k"'),
        ({"from": "x", "messages": [{"role": "ghost"}]}, "message role must be one of"),
    ],
)
def test_what_cannot_be_made(server: Running, fields: dict[str, object], text: str) -> None:
    reply = server.post("/api/create", {"model": "new"} | fields)
    assert reply.status == 400
    assert text in reply.error


def test_pull_stays_outside_of_private_networks(server: Running, blob: bytes) -> None:
    """Requests by the server to its own network were CVE-2026-5530. Here a registry waits for them."""
    with FakeRegistry().running() as registry:
        registry.put({"model": blob})
        port = registry.host.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0"):
            asked = {"model": f"http://{host}:{port}/me/model:1", "insecure": True}
            for path, what in (("pull", asked), ("create", {"model": "new", "from": asked["model"]})):
                reply = server.post(f"/api/{path}", what)
                assert "error" in (reply.json if reply.status != 200 else reply.lines[-1]), host
        assert not registry.requests
    plain = server.post("/api/pull", {"model": "http://169.254.169.254/a/b", "insecure": True})
    assert "private address" in plain.lines[-1]["error"]
    assert server.post("/api/pull", {"model": "http://example.org/a/b", "stream": False}).status >= 400


def test_hostile_files_are_refused(server: Running) -> None:
    """A crafted GGUF must neither crash the server nor become a model (CVE-2024-39720 and the like)."""
    guide = bundled_model(ModelName.parse("guide"))
    assert guide is not None
    whole = guide.read_bytes()
    for data in (
        whole[:5000],
        b"GGUF" + b"\xff" * 64,
        b"",
        whole[:4] + b"\x03\0\0\0" + b"\xff" * 16 + whole[24:],
    ):
        digest = digest_of(data)
        server.post(f"/api/blobs/{digest}", data)
        lines = server.post("/api/create", {"model": "bad", "files": {"a.gguf": digest}}).lines
        assert "error" in lines[-1]
    assert names(server) == {"guide:latest"}
    assert server.get("/").status == 200


@pytest.mark.parametrize("kind", ["renderer", "parser"])
def test_names_that_are_not_known_are_told(server: Running, tmp_path: Path, kind: str) -> None:
    """The result is neither plain text without roles nor an unparsed answer."""
    template = None if kind == "renderer" else "{{ messages }}"
    data = write_tiny_llama(tmp_path / "named.gguf", chat_template=template).read_bytes()
    server.post(f"/api/blobs/{digest_of(data)}", data)
    made = {"model": "named", "files": {"a.gguf": digest_of(data)}, kind: "from-the-future"}
    assert server.post("/api/create", made | {"stream": False}).json == {"status": "success"}
    asked = {"model": "named", "messages": [{"role": "user", "content": "x"}]}
    reply = server.post("/api/chat", asked)
    assert reply.status == 400
    assert f"the {kind} 'from-the-future', which this version does not" in reply.error
    assert server.post("/api/generate", {"model": "named", "prompt": "x", "raw": True}).status == 200


def test_templates_of_files_are_in_a_sandbox(server: Running, tmp_path: Path) -> None:
    """A chat template that ran code was CVE-2024-34359."""
    evil = "{{ messages.__class__.__base__.__subclasses__() }}"
    data = write_tiny_llama(tmp_path / "evil.gguf", chat_template=evil).read_bytes()
    server.post(f"/api/blobs/{digest_of(data)}", data)
    server.post("/api/create", {"model": "evil", "files": {"a.gguf": digest_of(data)}})
    reply = server.post("/api/chat", {"model": "evil", "messages": [{"role": "user", "content": "x"}]})
    assert reply.status == 400
    endless = server.post(
        "/api/generate",
        {
            "model": "evil",
            "prompt": "x",
            "template": "{{ define `a` }}{{ template `a` }}{{ end }}{{ template `a` }}",
        },
    )
    assert endless.status == 400


def test_a_template_that_cannot_be_read_makes_no_model(server: Running) -> None:
    asked = {"model": "unreadable", "from": "helper", "template": "{{ .System }}\n{{ if }}", "stream": False}
    reply = server.post("/api/create", asked)
    assert reply.status == 400
    assert "the chat template, line 2: " in reply.error
    assert server.post("/api/show", {"model": "unreadable"}).status == 404


def upload(server: Running, folder: Path, *names: str) -> dict[str, str]:
    """Upload the files of a folder as blobs; return their names and digests."""
    files = {}
    for name in names or sorted(path.name for path in folder.iterdir()):
        data = (folder / name).read_bytes()
        files[name] = digest_of(data)
        assert server.post(f"/api/blobs/{files[name]}", data).status in (200, 201)
    return files


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_a_checkpoint_is_converted(server: Running, tmp_path: Path, quantize: str | None) -> None:
    kept = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    files = upload(server, CHECKPOINT, *kept)
    asked = {"model": "converted", "files": files, "quantize": quantize}
    lines = server.post("/api/create", asked).lines
    assert lines[0]["status"] == "converting model"
    assert lines[-1] == {"status": "success"}
    shown = server.post("/api/show", {"model": "converted"}).json
    assert shown["details"]["quantization_level"] == (quantize or "f16").upper()
    assert shown["model_info"]["general.architecture"] == "qwen2"
    # The same bytes as from the folder itself.
    folder = tmp_path / "converted"
    folder.mkdir()
    for name in kept:
        (folder / name).write_bytes((CHECKPOINT / name).read_bytes())
    convert(folder, tmp_path / "out.gguf", (quantize or "f16").upper())
    data = (tmp_path / "out.gguf").read_bytes()
    assert server.ask("HEAD", f"/api/blobs/{digest_of(data)}").status == 200


def test_checkpoints_that_cannot_be_converted(server: Running) -> None:
    files = upload(server, CHECKPOINT, "config.json", "model.safetensors")

    def error(files: dict[str, str]) -> str:
        reply = server.post("/api/create", {"model": "bad", "files": files})
        return str(reply.error if reply.status != 200 else reply.lines[-1]["error"])

    assert "tokenizer" in error(files)
    assert "config.json" in error({"model.safetensors": files["model.safetensors"]})
    assert "was not uploaded" in error({**files, "tokenizer.json": digest_of(b"nowhere")})
    for path in ("../config.json", "/etc/config.json", "a/../../b.json"):
        assert error({**files, path: files["config.json"]}) == "file path must be relative"
    for path in ("a\0b.json", "", " .json", ".hidden"):
        assert "file path must be relative" in error({**files, path: files["config.json"]})
    assert "can contain code" in error({"pytorch_model.bin": files["config.json"]})
    assert server.post("/api/show", {"model": "bad"}).status == 404


@pytest.mark.parametrize(
    ("what", "given"),
    [("replace", {"model": "tiny"}), ("drain", {"node": "here"}), ("remove", {"application": "chaski-tiny"})],
)
def test_a_cluster_is_managed_by_a_server_with_one(server: Running, what: str, given: dict[str, str]) -> None:
    reply = server.post(f"/api/cluster/{what}", given)
    assert reply.status >= 400
    assert "chaski serve --cluster" in reply.json["error"]


def test_an_upload_of_a_known_blob_is_read_to_its_end(server: Running) -> None:
    """A simple client sends all of it, and would see a reset if the server did not read it."""
    data = bytes(8 << 20)
    path = f"/api/blobs/{digest_of(data)}"
    assert [server.post(path, data).status for _ in range(3)] == [201, 200, 200]
    head = f"POST {path} HTTP/1.1\r\nHost: x.localhost\r\nContent-Length: {len(data)}\r\n"
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=0.3)) as connection:
        connection.sendall(f"{head}\r\n".encode() + data[:1000])
        with pytest.raises(TimeoutError):  # no answer before the last byte
            connection.recv(1 << 16)
        connection.settimeout(60)
        connection.sendall(data[1000:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    # With Expect, a client waits for the server's reply before sending.
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as connection:
        connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_file_in_parts_is_joined(server: Running, blob: bytes, tmp_path: Path) -> None:
    (tmp_path / "whole.gguf").write_bytes(blob)
    files = {}
    for part in write_split(tmp_path / "whole.gguf", tmp_path):
        data = part.read_bytes()
        assert server.post(f"/api/blobs/{digest_of(data)}", data).status == 201
        files[part.name] = digest_of(data)
    lines = server.post("/api/create", {"model": "joined", "files": files}).lines
    assert "joining the parts" in [line["status"] for line in lines]
    assert lines[-1]["status"] == "success"
    shown = server.post("/api/show", {"model": "joined"}).json["model_info"]
    assert "split.count" not in shown
    del files["whole-00002-of-00003.gguf"]
    refused = server.post("/api/create", {"model": "half", "files": files, "stream": False})
    assert refused.status == 400
    assert "part 2 of 3 is missing: whole-00002-of-00003.gguf" in refused.json["error"]
