from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import ModelNotFoundError, OptionError, StoreError, TemplateError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest, ModelName
from chaski.store import blobs
from chaski.store.bundled import bundled_models, read_bundled
from chaski.store.create import create
from chaski.store.describe import modelfile_of
from chaski.store.model import StoredModel, find_model, read_model
from chaski.store.modelfile import Modelfile
from chaski.store.progress import StoreProgress
from chaski.store.recipe import Recipe, recipe_of
from chaski.store.store import Store
from chaski.store.weights import inspect
from tests.store.stores import assert_valid, put_by_hand
from tests.tiny_llama import write_tiny_llama

MINE = ModelName.parse("mine")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return Store(tmp_path / "models")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf")


@pytest.fixture
def no_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without reflinks."""
    monkeypatch.setattr(blobs, "clone_file", lambda source, path: False)


def made(store: Store, text: str, folder: Path, name: ModelName = MINE) -> StoredModel:
    list(create(store, name, recipe_of(Modelfile.parse(text), folder)))
    assert_valid(store)
    return find_model(name.short, store)


def config_of(store: Store, name: ModelName = MINE) -> dict[str, object]:
    found: dict[str, object] = json.loads(store.blobs.read(store.entry(name).manifest.config.digest))
    return found


def test_the_file_stays_its_owners(store: Store, weights: Path, tmp_path: Path, no_clones: None) -> None:
    """What is written into it later does not reach the store, unless the store was given the very file."""
    recipe = Recipe(sources=[weights])
    steps = list(create(store, MINE, recipe))
    size = weights.stat().st_size
    copied = [(step.total, step.completed) for step in steps if step.status == "copying model"]
    assert copied[-1] == (size, size)
    blob = find_model("mine", store).path
    assert not blob.samefile(weights)
    list(create(store, ModelName.parse("linked"), recipe, link=True))
    assert find_model("linked", store).path.samefile(weights)
    list(create(store, MINE, recipe))
    weights.write_bytes(b"changed")
    assert_valid(store)


def test_a_file_that_the_disk_has_no_room_for(
    store: Store, weights: Path, no_clones: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(StoreError, match=r"tiny.gguf has \d+ bytes.* room for 10; .*--link"):
        list(create(store, MINE, Recipe(sources=[weights])))
    assert not any(store.blobs)
    list(create(store, MINE, Recipe(sources=[weights]), link=True))


def test_from_a_file(store: Store, weights: Path, tmp_path: Path) -> None:
    text = (
        'FROM ./tiny.gguf\nTEMPLATE "{{ .Prompt }}"\nSYSTEM be brief\nPARAMETER stop a\n'
        'PARAMETER stop "<b>"\nPARAMETER temperature 1\nLICENSE MIT\nLICENSE Apache\n'
        "MESSAGE user hi\nMESSAGE assistant ho\nRENDERER qwen3-coder\nPARSER qwen3-coder\n"
    )
    found = made(store, text, tmp_path)
    assert (found.template, found.system, found.licenses) == ("{{ .Prompt }}", "be brief", ("MIT", "Apache"))
    assert found.parameters == {"stop": ["a", "<b>"], "temperature": 1.0}
    assert [turn["content"] for turn in found.messages] == ["hi", "ho"]
    assert found.config.renderer == found.config.parser == "qwen3-coder"
    assert found.path.read_bytes() == weights.read_bytes()
    assert found.path.name == f"sha256-{hashlib.sha256(weights.read_bytes()).hexdigest()}"


def test_the_files_are_those_of_ollama(store: Store, weights: Path, tmp_path: Path) -> None:
    made(store, 'FROM ./tiny.gguf\nPARAMETER stop "<b>"\nPARAMETER num_ctx 8', tmp_path)
    entry = store.entry(MINE)
    model, params = entry.manifest.layers
    assert store.blobs.read(params.digest) == b'{"num_ctx":8,"stop":["\\u003cb\\u003e"]}\n'
    assert [layer.media_type for layer in (model, params, entry.manifest.config)] == [
        "application/vnd.ollama.image.model",
        "application/vnd.ollama.image.params",
        "application/vnd.docker.container.image.v1+json",
    ]
    expected = (
        '{"model_format":"gguf","model_family":"llama","model_type":"96K","file_type":"F32",'
        '"model_families":["llama"],"architecture":"amd64","os":"linux",'
        f'"rootfs":{{"type":"layers","diff_ids":["{model.digest}","{params.digest}"]}}}}\n'
    )
    assert store.blobs.read(entry.manifest.config.digest).decode() == expected
    manifest = (store.root / "manifests/registry.ollama.ai/library/mine/latest").read_bytes()
    assert manifest == entry.manifest.encode()


def test_from_another_model(store: Store, weights: Path, tmp_path: Path) -> None:
    first = (
        "FROM ./tiny.gguf\nSYSTEM old\nTEMPLATE t\nPARAMETER seed 1\nPARAMETER top_k 5\nLICENSE MIT\nPARSER p"
    )
    made(store, first, tmp_path)
    copy = ModelName.parse("copy")
    found = made(store, "FROM Mine\nSYSTEM new\nPARAMETER seed 2\nMESSAGE user hi", tmp_path, copy)
    assert (found.system, found.template, found.licenses, found.config.parser) == ("new", "t", ("MIT",), "p")
    assert found.parameters == {"seed": 2, "top_k": 5}
    assert found.config.model_family == "llama"
    sources = {layer.kind: layer.source for layer in store.entry(copy).manifest.layers}
    own = dict.fromkeys(("system", "params", "messages"))
    assert sources == {**dict.fromkeys(("model", "template", "license"), str(MINE)), **own}
    assert made(store, 'FROM mine\nSYSTEM ""', tmp_path, copy).system is None


def test_what_is_told(store: Store, weights: Path, tmp_path: Path) -> None:
    recipe = Recipe(sources=[weights], system="be brief")
    events = [event.status for event in create(store, MINE, recipe)]
    blobs = [f"creating new layer {layer.digest}" for layer in store.entry(MINE).manifest.blobs]
    # Where the file system has clones nothing is copied.
    kept = [event for event in events if event != "copying model"]
    assert kept == ["parsing GGUF", *blobs, "writing manifest", "success"]


def test_from_a_blob(store: Store, weights: Path) -> None:
    digest = store.blobs.add_stream([weights.read_bytes()])
    list(create(store, MINE, Recipe(sources=[digest])))
    assert find_model("mine", store).path == store.blobs.path(digest)
    with pytest.raises(ModelNotFoundError):
        list(create(store, MINE, Recipe(sources=[Digest("0" * 64)])))


def test_a_bundled_model_can_be_the_source(store: Store, tmp_path: Path) -> None:
    found = made(store, "FROM Guide\nSYSTEM be brief", tmp_path)
    assert (found.config.model_format, found.system) == ("gguf", "be brief")
    (weights,) = store.entry(MINE).manifest.of_kind("model")
    assert weights.source == "registry.ollama.ai/library/guide:latest"
    assert_valid(store)


def test_what_describes_a_bundled_model_is_what_create_writes(store: Store) -> None:
    for name, path in bundled_models().items():
        list(create(store, MINE, Recipe(sources=[path])))
        found = read_bundled(path)
        assert store.blobs.read(store.entry(MINE).manifest.config.digest) == found.config
        assert store.entry(MINE).manifest == found.manifest == store.entry(name).manifest


@pytest.mark.parametrize("template", ["{{ if }}", "{{ .Prompt", "{{ nope 1 }}", "{{ end }}"])
def test_a_template_that_cannot_be_read_is_refused(
    store: Store, weights: Path, tmp_path: Path, template: str
) -> None:
    with pytest.raises(TemplateError, match="the chat template, line 2: "):
        made(store, f'FROM ./tiny.gguf\nTEMPLATE """{{{{ .System }}}}\n{template}"""', tmp_path)
    assert not list(store.names())
    assert not list(store.blobs)


def test_making_it_again_replaces_it(store: Store, weights: Path, tmp_path: Path) -> None:
    made(store, "FROM ./tiny.gguf\nSYSTEM first", tmp_path)
    made(store, "FROM mine\nSYSTEM second", tmp_path)
    contents = [store.blobs.path(digest).read_bytes() for digest in store.blobs]
    assert b"second" in contents
    assert b"first" not in contents


def test_weights_can_be_quantized(store: Store, weights: Path, tmp_path: Path) -> None:
    recipe = recipe_of(Modelfile.parse("FROM ./tiny.gguf"), tmp_path, quantize="Q8_0")
    events = list(create(store, MINE, recipe))
    work = [event for event in events if event.status == "quantizing F32 model to Q8_0"]
    with open_gguf(weights) as file:
        num_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
    assert (work[-1].completed, work[-1].total) == (num_bytes, num_bytes)
    found = find_model("mine", store)
    assert found.config.file_type == "Q8_0"
    with open_gguf(found.path) as file:
        assert file.tensors["blk.0.attn_q.weight"].type is QuantType.Q8_0
    # Of a model in the store as well, once.
    other = ModelName.parse("other")
    list(create(store, other, Recipe(sources=[weights])))
    list(create(store, other, Recipe(sources=[other], quantize="Q8_0")))
    assert find_model("other", store).path == found.path
    with pytest.raises(UnsupportedError, match="quantization is only supported for F16"):
        list(create(store, other, Recipe(sources=[other], quantize="F16")))
    assert_valid(store)


def test_stopping_leaves_nothing(store: Store, weights: Path) -> None:
    events = create(store, MINE, Recipe(sources=[weights], quantize="Q8_0"))
    next(event for event in events if event.total)
    events.close()
    assert list(store.names()) == []
    assert list(store.blobs.folder.iterdir()) == []


def test_a_projector_is_another_layer(store: Store, weights: Path, tmp_path: Path) -> None:
    one = {"v.weight": (np.ones((1, 32), np.float32), QuantType.F32)}
    write_gguf(tmp_path / "projector.gguf", {"general.architecture": "clip"}, one)
    found = made(store, "FROM ./tiny.gguf\nFROM ./projector.gguf", tmp_path)
    assert found.projectors[0].read_bytes() == (tmp_path / "projector.gguf").read_bytes()
    assert found.config.model_families == ("llama", "clip")
    assert found.config.model_family == "llama"


def test_a_missing_source_is_fetched(store: Store, weights: Path) -> None:
    base = ModelName.parse("base")

    def fetch(name: ModelName) -> Iterator[StoreProgress]:
        assert name == base
        yield StoreProgress("fetching")
        yield from create(store, base, Recipe(sources=[weights]))

    events = list(create(store, MINE, Recipe(sources=[base]), fetch))
    assert events[0].status == "fetching"
    assert find_model("mine", store).path == find_model("base", store).path
    with pytest.raises(ModelNotFoundError, match="model 'none:latest' not found"):
        list(create(store, MINE, Recipe(sources=[ModelName.parse("none")])))


def test_where_from_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("one.gguf", "weights/x-00001-of-00002.gguf", "weights/x-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    monkeypatch.setenv("HOME", str(tmp_path / "weights"))

    def source(text: str) -> object:
        (found,) = recipe_of(Modelfile.parse(f"FROM {text}"), tmp_path).sources
        return found

    assert source("one.gguf") == source(str(tmp_path / "one.gguf")) == tmp_path / "one.gguf"
    assert source("weights") == source("~") == tmp_path / "weights/x-00001-of-00002.gguf"
    assert source("me/model:1") == ModelName.parse("me/model:1")
    for text in ("./two", "/two", "~/two", "two.gguf"):
        with pytest.raises(ModelNotFoundError, match="no such file"):
            source(text)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match="empty: no Modelfile or safetensors files found"):
        source("./empty")
    with pytest.raises(OptionError, match="invalid model name"):
        source("a b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM x\nADAPTER ./lora.gguf", "ADAPTER is not supported"),
        ("FROM ./model.safetensors", "model.safetensors alone cannot be converted to GGUF"),
        ("FROM ./folder", "model-00001-of-00002.safetensors alone cannot be"),
    ],
)
def test_what_this_version_cannot_do(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/model-00001-of-00002.safetensors").touch()
    with pytest.raises(UnsupportedError, match=message):
        recipe_of(Modelfile.parse(text), tmp_path)


def test_a_draft_is_another_layer(store: Store, weights: Path, tmp_path: Path) -> None:
    """A file, or the weights of another model, also in other types; what is made of the model has it too."""
    write_tiny_llama(tmp_path / "small.gguf", memory=0.3)
    made(store, f"FROM {weights}\nDRAFT ./small.gguf", tmp_path)
    entry = store.entry(MINE)
    model = read_model(store, entry)
    assert model.draft is not None
    assert model.draft.read_bytes() == (tmp_path / "small.gguf").read_bytes()
    assert [layer.media_type.rpartition(".")[2] for layer in entry.manifest.layers] == ["model", "draft"]
    assert f"DRAFT {model.draft}" in str(modelfile_of(model))
    child = ModelName.parse("child")
    for recipe, same in (
        (Recipe(sources=[MINE]), True),
        (Recipe(sources=[MINE], draft=MINE), False),
        (Recipe(sources=[MINE], draft=tmp_path / "small.gguf", draft_quantize="Q8_0"), False),
    ):
        list(create(store, child, recipe))
        found = read_model(store, store.entry(child))
        assert (found.draft == model.draft) is same
        assert len(store.entry(child).manifest.of_kind("draft")) == 1
    assert found.draft is not None
    assert inspect(found.draft).file_type == "Q8_0"
    list(create(store, child, Recipe(sources=[MINE], draft=MINE)))
    assert read_model(store, store.entry(child)).draft == model.path
    with pytest.raises(ModelNotFoundError, match=r"DRAFT ./nothing.gguf: no such file"):
        made(store, f"FROM {weights}\nDRAFT ./nothing.gguf", tmp_path)


def test_what_cannot_be_a_draft(store: Store, weights: Path, tmp_path: Path) -> None:
    one = {"v.weight": (np.ones((1, 32), np.float32), QuantType.F32)}
    write_gguf(tmp_path / "projector.gguf", {"general.architecture": "clip"}, one)
    with pytest.raises(OptionError, match="is no model of text"):
        made(store, f"FROM {weights}\nDRAFT ./projector.gguf", tmp_path)


def test_adapters_are_refused(store: Store, tmp_path: Path) -> None:
    one = {"a.weight": (np.ones((1, 32), np.float32), QuantType.F32)}
    metadata = {"general.architecture": "llama", "general.type": "adapter"}
    write_gguf(tmp_path / "lora.gguf", metadata, one)
    with pytest.raises(UnsupportedError, match="is an adapter"):
        made(store, "FROM ./lora.gguf", tmp_path)


def test_weights_are_needed_once(store: Store, weights: Path) -> None:
    for sources in ([], [weights, weights]):
        with pytest.raises(OptionError, match="a model has one file of weights"):
            list(create(store, MINE, Recipe(sources=sources)))
    assert list(store.names()) == []


def test_a_base_that_is_damaged(store: Store) -> None:
    put_by_hand(store.root, "registry.ollama.ai/library/base/latest", {"model": b"", "params": b"[]"}, b"{")
    with pytest.raises(StoreError, match="is no JSON"):
        list(create(store, MINE, Recipe(sources=[ModelName.parse("base")])))
    put_by_hand(store.root, "registry.ollama.ai/library/base/latest", {"model": b"", "params": b"[]"})
    with pytest.raises(StoreError, match="is no JSON object"):
        list(create(store, MINE, Recipe(sources=[ModelName.parse("base")], parameters={"seed": 1})))


CHECKPOINT = Path(__file__).parents[1] / "data" / "checkpoints" / "qwen3"


def test_from_a_checkpoint(store: Store, tmp_path: Path) -> None:
    model = made(store, f"FROM {CHECKPOINT}\nSYSTEM Be brief.", tmp_path)
    with open_gguf(model.path) as file:
        assert file.architecture == "qwen3"
        assert file.tensors["blk.0.attn_q.weight"].type is QuantType.F16
    assert config_of(store)["model_family"] == "qwen3"
    assert config_of(store)["file_type"] == "F16"


def test_a_checkpoint_in_other_types(store: Store, tmp_path: Path) -> None:
    recipe = recipe_of(Modelfile.parse(f"FROM {CHECKPOINT}"), tmp_path, "Q8_0")
    told = [progress for progress in create(store, MINE, recipe) if progress.status == "converting model"]
    assert_valid(store)
    with open_gguf(find_model(MINE.short, store).path) as file:
        num_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
        assert (told[-1].completed, told[-1].total) == (num_bytes, num_bytes)
        assert file.tensors["blk.0.attn_q.weight"].type is QuantType.Q8_0


def test_a_checkpoint_that_cannot_be_converted_leaves_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"architectures": ["X"]}')
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="'X' cannot be converted"):
        made(store, "FROM ./broken", tmp_path)
    assert store.locate(MINE) is None
    assert not any((tmp_path / "models" / "blobs").iterdir())
