"""LoRA adapters of a server: each name uses its own adapter, and adapters cannot read other files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.errors import UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.names import ModelName
from chaski.runner.loading.files import OpenedModel
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.adapters import adapted_names, random_adapter
from tests.convert.checkpoints import write_safetensors
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

PROMPT = "the thing in the hat"
GREEDY = {"temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with `base`, and with `tuned`, which has the adapter `one`; and a folder of adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    weights = write_tiny_llama(folder / "base.gguf")
    (folder / "lora").mkdir()
    with open_gguf(weights) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    for seed, name in enumerate(("one", "two", "three"), 1):
        random_adapter(folder / "lora" / f"{name}.gguf", shapes, seed, rank=4, size=0.5)
    random_adapter(folder / "lora" / "foreign.gguf", shapes, 1, rank=4, architecture="qwen2")
    (folder / "secret.gguf").write_bytes((folder / "lora" / "one.gguf").read_bytes())
    (folder / "lora" / "link.gguf").symlink_to(folder / "secret.gguf")
    store = Store(folder / "models")
    list(create(store, ModelName.parse("base"), Recipe(sources=[weights])))
    adapter = folder / "lora" / "one.gguf"
    list(create(store, ModelName.parse("tuned"), Recipe(sources=[weights], adapters=[adapter])))
    return folder


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    """Return Python's answers with the adapters."""
    files = {name: folder / "lora" / f"{name}.gguf" for name in ("one", "two", "three")}
    found = {}
    with chaski.load(folder / "base.gguf", adapters=files, threads=1) as model:
        for label, adapter in (
            ("base", None),
            *((name, name) for name in files),
            ("mixed", [["two", 0.5], ["one", 1.0]]),
            ("half", [["two", 0.5]]),
        ):
            found[label] = model.generate(PROMPT, adapter=adapter, **GREEDY).text
    assert len(set(found.values())) == len(found)
    return found


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    settings = Settings(address=SOMEWHERE, adapters=folder / "lora", parallel=8)
    with running(settings, folder / "models") as server:
        yield server


def native(server: Running, model: str, **options: Any) -> str:
    body = {"model": model, "prompt": PROMPT, "raw": True, "stream": False, "options": GREEDY | options}
    reply = server.post("/api/generate", body)
    assert reply.status == 200, reply.body
    return str(reply.json["response"])


def openai(server: Running, model: str, **more: Any) -> str:
    body = {"model": model, "prompt": PROMPT, "raw": True, "temperature": 0, "max_tokens": 12, **more}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["text"])


def load(server: Running, name: str, path: str, **more: Any) -> None:
    body = {"lora_name": name, "lora_path": path, "base_model_name": "base", **more}
    reply = server.post("/v1/load_lora_adapter", body)
    assert reply.status == 200, reply.body
    assert reply.body.decode() == f"Success: LoRA adapter '{name}' added successfully."


def test_a_stored_model_has_its_adapter(server: Running, texts: dict[str, str]) -> None:
    assert native(server, "base") == texts["base"]
    assert native(server, "tuned") == texts["one"]
    assert openai(server, "tuned") == texts["one"]
    # It shares the weights with its base; they are loaded once.
    (loaded,) = server.get("/api/ps").json["models"]
    assert [name[:7] for name in loaded["adapters"]] == ["sha256-"]
    shown = server.post("/api/show", {"model": "tuned"}).json
    (adapter,) = shown["adapters"]
    assert (adapter["architecture"], adapter["rank"], adapter["alpha"]) == ("llama", 4, 32)
    assert "ADAPTER" not in shown["modelfile"]
    # An option of the request has precedence; the name of a model selects its adapter.
    assert native(server, "tuned", adapter=[]) == texts["base"]
    assert native(server, "base", adapter="tuned") == texts["one"]
    assert openai(server, "base", options={"adapter": [["tuned", 1]]}) == texts["one"]


def test_adapters_are_models_by_their_names(server: Running, texts: dict[str, str]) -> None:
    load(server, "sql", "two.gguf")
    assert openai(server, "sql") == openai(server, "base:sql") == native(server, "sql") == texts["two"]
    assert openai(server, "base:latest:sql") == texts["two"]
    assert native(server, "base", adapter=[["sql", 0.5]]) == texts["half"]
    assert native(server, "base", adapter=[["sql", 0.5], ["tuned", 1]]) == texts["mixed"]
    body = {"model": "sql", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    assert server.post("/v1/chat/completions", body).json["model"] == "sql"
    listed = {each["id"]: each for each in server.get("/v1/models").json["data"]}
    assert (listed["sql"]["parent"], listed["sql"]["root"]) == ("base:latest", "two.gguf")
    assert "parent" not in listed["base:latest"]
    assert server.get("/v1/models/base:sql").json["parent"] == "base:latest"
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "sql"}).status == 200
    assert server.post("/v1/completions", {"model": "sql", "prompt": "x"}).status == 404
    reply = server.post("/v1/unload_lora_adapter", {"lora_name": "sql"})
    assert (reply.status, reply.json["error"]["type"]) == (404, "not_found_error")
    reply = server.post("/api/generate", {"model": "base", "prompt": "x", "options": {"adapter": "sql"}})
    assert (reply.status, reply.error) == (404, "base has no adapter 'sql'")


def test_requests_at_once_get_their_own(server: Running, texts: dict[str, str]) -> None:
    """This also holds while adapters are loaded and unloaded."""
    for name in ("one", "two", "three"):
        load(server, name, f"{name}.gguf")
    labels = ["one", "base", "two", "half", "three", "mixed"] * 4

    def asked(label: str) -> str:
        options = {"half": {"adapter": [["two", 0.5]]}, "mixed": {"adapter": [["two", 0.5], ["one", 1]]}}
        return native(server, "base" if label in options else label, **options.get(label, {}))

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(asked, labels)
        load(server, "three", "three.gguf", load_inplace=True)
        assert list(answers) == [texts[label] for label in labels]


@pytest.mark.long
def test_another_file_takes_the_place_of_one(server: Running, texts: dict[str, str]) -> None:
    load(server, "sql", "two.gguf")
    assert openai(server, "sql") == texts["two"]
    reply = server.post("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "three.gguf"})
    assert reply.status == 400
    assert "has already been loaded" in reply.json["error"]["message"]
    load(server, "sql", "three.gguf", load_inplace=True)
    assert openai(server, "sql") == texts["three"]


@pytest.mark.long
def test_llama_cpps_list_and_scales(server: Running, texts: dict[str, str]) -> None:
    load(server, "a", "one.gguf")
    load(server, "b", "two.gguf")
    listed = server.get("/lora-adapters").json
    assert [(each["id"], each["name"], each["path"], each["scale"]) for each in listed] == [
        (0, "a", "one.gguf", 0.0),
        (1, "b", "two.gguf", 0.0),
    ]
    chosen = [{"id": 1, "scale": 0.5}, {"id": 0, "scale": 1.0}]
    assert openai(server, "base", lora=chosen) == texts["mixed"]
    assert openai(server, "base", lora=[{"id": 1, "scale": 0.5}, {"id": 0, "scale": 0}]) == texts["half"]
    assert server.post("/lora-adapters", [{"id": 1, "scale": 1}]).json == {"success": True}
    assert [each["scale"] for each in server.get("/lora-adapters").json] == [0.0, 1.0]
    assert openai(server, "base") == texts["two"]
    assert openai(server, "base", lora=[]) == texts["base"]
    assert openai(server, "a") == texts["one"]
    assert server.post("/lora-adapters", []).status == 200
    assert openai(server, "base") == texts["base"]
    for body, status in (
        ([{"id": 7, "scale": 1}], 404),
        ([{"id": 1}], 400),
        ([{"id": 1, "scale": 1}, {"id": 1, "scale": 0}], 400),
        ({"adapters": 3}, 400),
        ([3], 400),
    ):
        assert server.post("/lora-adapters", body).status == status, body
    reply = server.post("/v1/completions", {"model": "base", "prompt": "x", "lora": [{"id": 9, "scale": 1}]})
    assert reply.status == 404


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("../secret.gguf", 404, "there is no adapter 'secret.gguf'"),
        ("/etc/passwd", 404, "there is no adapter 'passwd'"),
        ("link.gguf", 404, "there is no adapter 'link.gguf'"),
        ("a\0b", 404, "there is no adapter"),
        ("foreign.gguf", 400, "foreign.gguf: the adapter is for architecture 'qwen2'"),
        ("", 400, "Both 'lora_name' and 'lora_path' must be provided"),
    ],
)
def test_paths_lead_nowhere_else(server: Running, folder: Path, path: str, status: int, message: str) -> None:
    body = {"lora_name": "x", "lora_path": path, "base_model_name": "base"}
    reply = server.post("/v1/load_lora_adapter", body)
    assert (reply.status, message in reply.json["error"]["message"]) == (status, True), reply.body
    assert str(folder).encode() not in reply.body
    assert server.get("/lora-adapters").json == []


def test_names_that_cannot_be(server: Running) -> None:
    for name in ("a b", "../x", "a:b", "x" * 200, "tuned"):
        body = {"lora_name": name, "lora_path": "one.gguf", "base_model_name": "base"}
        assert server.post("/v1/load_lora_adapter", body).status == 400, name
    body = {"lora_name": "x", "lora_path": "one.gguf"}
    assert "base_model_name is required" in server.post("/v1/load_lora_adapter", body).body.decode()
    assert server.post("/v1/load_lora_adapter", body | {"base_model_name": "none"}).status == 404


def write_peft(folder: Path) -> None:
    """Write an adapter of one matrix of the tiny model in PEFT's form."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 64}))
    random, module = np.random.default_rng(1), "base_model.model.model.layers.1.mlp.down_proj.lora"
    shapes = (("A", (4, 96)), ("B", (64, 4)))
    write_safetensors(
        folder / "adapter_model.safetensors",
        {
            f"{module}_{letter}.weight": ("F32", random.standard_normal(shape).astype(np.float32))
            for letter, shape in shapes
        },
    )


@pytest.mark.long
def test_folders_of_peft_are_converted(
    server: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_peft(folder / "lora" / "peft")
    load(server, "peft", "peft")
    assert openai(server, "peft") != openai(server, "base")
    # This includes adapters that a command sends, one or several.
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    (folder / "Modelfile").write_text("FROM base\nADAPTER lora/peft\n")
    create_there = ["create", "sent", "-f", str(folder / "Modelfile")]
    result = CliRunner().invoke(chaski_command, create_there)
    assert result.exit_code == 0, result.output
    assert "converting adapter" in result.output
    assert native(server, "sent") == native(server, "peft")
    (folder / "Modelfile").write_text("FROM base\nADAPTER lora/two.gguf\nADAPTER lora/peft\n")
    assert CliRunner().invoke(chaski_command, create_there).exit_code == 0
    assert len(server.post("/api/show", {"model": "sent"}).json["adapters"]) == 2
    load(server, "two", "two.gguf")
    assert native(server, "sent") == native(server, "base", adapter=["two", "peft"])
    shown = CliRunner().invoke(chaski_command, ["show", "sent"]).output
    assert shown.count("  Adapter\n") == 2


def test_another_process_reads_adapters(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it dies, the request reports an error, and the name stays free."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    body = {"lora_name": "sql", "lora_path": "one.gguf", "base_model_name": "base"}
    with monkeypatch.context() as patches:
        patches.setattr(sys, "executable", str(program))
        reply = server.post("/v1/load_lora_adapter", body)
        assert reply.status >= 500
        assert "checks adapter one.gguf ended by the signal SIGKILL" in reply.body.decode()
    assert server.post("/v1/load_lora_adapter", body).status == 200


def test_vectors_have_no_adapters(server: Running, folder: Path) -> None:
    """It gives an error instead of the base model's vectors."""
    weights = write_tiny_llama(folder / "vectors.gguf", llama__pooling_type=1)
    recipe = Recipe(sources=[weights], adapters=[folder / "lora" / "one.gguf"])
    list(create(server.services.catalog.store, ModelName.parse("vectors"), recipe))
    reply = server.post("/api/embed", {"model": "vectors", "input": "x"})
    assert (reply.status, "vectors are computed without one" in reply.error) == (400, True)
    with pytest.raises(UnsupportedError, match="makes vectors"):
        chaski.load(OpenedModel.of(find_model("vectors", server.services.catalog.store)))


def test_only_admins_change_adapters(folder: Path) -> None:
    settings = Settings(
        address=SOMEWHERE, api_keys=("user",), admin_keys=("admin",), adapters=folder / "lora"
    )
    load_body = {"lora_name": "x", "lora_path": "one.gguf", "base_model_name": "base"}
    with running(settings, folder / "models") as server:
        for path, body in (
            ("/v1/load_lora_adapter", load_body),
            ("/lora-adapters", [{"id": 0, "scale": 1}]),
            ("/v1/unload_lora_adapter", {"lora_name": "x"}),
        ):
            assert server.post(path, body, Authorization="Bearer user").status == 403
            assert server.post(path, body, Authorization="Bearer admin").status == 200
        assert server.get("/lora-adapters", Authorization="Bearer user").status == 200
        assert server.get("/lora-adapters").status == 401


def test_without_a_folder_no_adapter_is_loaded(folder: Path) -> None:
    with running(Settings(address=SOMEWHERE), folder / "models") as server:
        body = {"lora_name": "x", "lora_path": str(folder / "lora" / "one.gguf"), "base_model_name": "base"}
        reply = server.post("/v1/load_lora_adapter", body)
        assert (reply.status, "CHASKI_ADAPTERS" in reply.json["error"]["message"]) == (400, True)
