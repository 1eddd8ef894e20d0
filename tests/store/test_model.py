from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from chaski.errors import ModelNotFoundError, StoreError, UnsupportedError
from chaski.names import ModelName
from chaski.store import bundled as module
from chaski.store.bundled import bundled_models
from chaski.store.model import StoredConfig, StoredModel, find_model
from chaski.store.store import Store
from tests.store.stores import put_by_hand, snapshot

NO_MODEL = "no model of that name; models here: me/mine:latest, one:latest, two:latest"
LIBRARY = "registry.ollama.ai/library/"


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package with the models `one` and `two`, and change to an empty folder."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.gguf").write_bytes(name.encode())
        digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        described = {"model_format": "gguf", "rootfs": {"diff_ids": [digest, digest]}}
        (folder / f"{name}.json").write_text(json.dumps(described))
        (folder / f"{name}.params").write_text('{"temperature":0}')
    monkeypatch.setattr(module, "_FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    root = tmp_path / "store"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    return Store(root)


def test_bundled_models_by_name(bundled: Path) -> None:
    assert [name.short for name in bundled_models()] == ["one:latest", "two:latest"]
    for name in ("two", "TWO", "two:latest", "Library/two", "registry.ollama.ai/library/two:LATEST"):
        found = find_model(name)
        assert (found.name, found.path) == (ModelName.parse("two"), bundled / "two.gguf")
        assert found.config.model_format == "gguf"
    for name in ("two:1b", "me/two"):
        with pytest.raises(ModelNotFoundError):
            find_model(name)


def test_a_model_of_the_store_goes_before_a_bundled_one(bundled: Path, store: Store) -> None:
    put_by_hand(store.root, LIBRARY + "two/latest", {"model": b"weights", "system": b"mine"})
    assert find_model("two").system == "mine"
    assert [name.short for name in store.all_names()] == ["two:latest", "one:latest"]
    store.remove(ModelName.parse("two"))
    assert find_model("two").path == bundled / "two.gguf"


def test_files_by_path(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "sha256-0f").touch()
    for path in ("model.gguf", "./model.gguf", "sha256-0f"):
        assert find_model(path) == StoredModel(None, Path(path))
    assert find_model(tmp_path / "model.gguf").path == tmp_path / "model.gguf"


def test_a_file_called_like_a_model(tmp_path: Path, bundled: Path, store: Store) -> None:
    put_by_hand(store.root, LIBRARY + "three/latest", {"model": b"weights"})
    for name in ("one", "three"):
        (tmp_path / name).touch()
        assert find_model(name).path not in (Path(name), tmp_path / name)
        assert find_model(f"./{name}").path == Path(name)
        assert find_model(Path(name)).path == Path(name)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "three",
            f"no file 'three' and {NO_MODEL}",
        ),
        (
            "one.gguf",
            f"no file 'one.gguf' and {NO_MODEL}",
        ),
        ("package", "package is a folder with 2 models; name the file: one.gguf, two.gguf"),
        ("/", "/ is a folder without a GGUF file of a model"),
    ],
)
def test_what_is_not_there(model: str, message: str, store: Store) -> None:
    put_by_hand(store.root, "registry.ollama.ai/me/mine/latest", {"model": b"weights"})
    with pytest.raises(ModelNotFoundError, match=re.escape(message) + "$"):
        find_model(model)


def test_all_that_layers_say(store: Store) -> None:
    layers = {
        "license#1": b"First",
        "model": b"weights",
        "projector": b"projector",
        "adapter": b"change",
        "draft": b"small",
        "license#2": b"Second",
        "template": b"{{ .Prompt }}",
        "system": b"be brief",
        "params": b'{"stop":["<|end|>"],"temperature":0.5,"num_ctx":null}',
        "messages": b'[{"role":"user","content":"hi"},{"role":"assistant","content":""}]',
    }
    put_by_hand(store.root, LIBRARY + "three/latest", layers)
    before = snapshot(store.root)
    found = find_model("Three")
    assert str(found.name) == LIBRARY + "three:latest"
    assert found.path.read_bytes() == b"weights"
    assert found.draft is not None
    files = [found.projectors[0], found.adapters[0], found.draft]
    assert [path.read_bytes() for path in files] == [b"projector", b"change", b"small"]
    assert (found.template, found.system) == ("{{ .Prompt }}", "be brief")
    assert found.parameters == {"stop": ["<|end|>"], "temperature": 0.5}
    assert found.messages == ({"role": "user", "content": "hi"}, {"role": "assistant", "content": ""})
    assert found.licenses == ("First", "Second")
    assert found.config == StoredConfig("gguf", "llama", (), "95.7K", "F32")
    assert snapshot(store.root) == before


def test_the_old_kind_of_template(store: Store) -> None:
    put_by_hand(store.root, LIBRARY + "three/latest", {"model": b"weights", "prompt": b"{{ .Prompt }}"})
    assert find_model("three").template == "{{ .Prompt }}"


@pytest.mark.parametrize(
    ("layers", "config", "error", "message"),
    [
        ({"model": b"", "params": b"{"}, b"{}", StoreError, "the params of the model is no JSON"),
        ({"model": b"", "params": b"[]"}, b"{}", StoreError, "the params of the model is a list"),
        ({"model": b"", "messages": b"[5]"}, b"{}", StoreError, "not a list of roles and contents"),
        ({"model": b""}, b"?", StoreError, "the config of the model is no JSON"),
        ({"model": b""}, b'{"model_family":5}', StoreError, "values that are not texts"),
        ({"model#1": b"1", "model#2": b"2"}, b"{}", UnsupportedError, "three has 2 weight files"),
        ({"tensor": b"1"}, b"{}", UnsupportedError, "three is not a GGUF model"),
        ({}, b'{"remote_host":"https://far.example"}', UnsupportedError, "runs on https://far.example"),
    ],
)
def test_layers_that_cannot_be_used(
    store: Store, layers: dict[str, bytes], config: bytes, error: type[Exception], message: str
) -> None:
    put_by_hand(store.root, LIBRARY + "three/latest", layers, config)
    with pytest.raises(error, match=message):
        find_model("three")


def test_a_damaged_text_is_an_error(store: Store) -> None:
    put_by_hand(store.root, LIBRARY + "three/latest", {"model": b"weights", "system": b"be brief"})
    system = next(d for d in store.blobs if store.blobs.path(d).read_bytes() == b"be brief")
    store.blobs.path(system).write_bytes(b"be grim!")
    with pytest.raises(StoreError, match=f"blob {system.short} is damaged"):
        find_model("three")


@pytest.mark.parametrize("count", [0, 7, 8, 9])
def test_at_most_eight_models_are_proposed(store: Store, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "all_names", lambda self: [ModelName.parse(f"m{n}") for n in range(count)])
    shown = ", ".join(f"m{number}:latest" for number in range(min(count, 8))) or "none"
    with pytest.raises(ModelNotFoundError) as error:
        find_model("/nothing/here")
    assert str(error.value).endswith(f"; models here: {shown}" + ", ..." * (count > 8))


@pytest.mark.parametrize("kind", ["model", "projector", "adapter", "draft"])
def test_a_missing_file_of_a_model_is_named(store: Store, kind: str) -> None:
    put_by_hand(store.root, LIBRARY + "three/latest", {"model": b"weights", f"{kind}": b"missing"})
    digest = next(d for d in store.blobs if store.blobs.path(d).read_bytes() == b"missing")
    store.blobs.remove(digest)
    with pytest.raises(
        StoreError, match=rf"^blob {digest.short} of three is missing; pull or create it again$"
    ):
        find_model("three")


def test_texts_that_are_no_utf8_and_messages_without_content(store: Store) -> None:
    layers = {"model": b"weights", "system": b"caf\xe9", "messages": b'[{"role":"user","content":null}]'}
    put_by_hand(store.root, LIBRARY + "three/latest", layers, b'{"model_families":null,"renderer":"r"}')
    found = find_model("three")
    assert found.system == "caf\ufffd"
    assert found.messages == ({"role": "user", "content": ""},)
    assert found.config == StoredConfig(renderer="r")


@pytest.mark.parametrize("config", [b'{"model_families":"llama"}', b'{"model_families":["llama",5]}'])
def test_families_are_texts(store: Store, config: bytes) -> None:
    put_by_hand(store.root, LIBRARY + "three/latest", {"model": b"weights"}, config)
    with pytest.raises(StoreError, match=r"^the config of the model contains values that are not texts$"):
        find_model("three")
