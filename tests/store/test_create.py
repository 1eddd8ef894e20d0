from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import ModelNotFoundError, StoreError, TemplateError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest, ModelName
from chaski.store import blobs
from chaski.store.bundled import bundled_models, read_bundled
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.modelfile import Modelfile
from chaski.store.progress import StoreProgress
from chaski.store.recipe import Recipe, recipe_of
from chaski.store.store import Store
from tests.store.creating import MINE, made, store, weights
from tests.store.stores import assert_valid

__all__ = ["store", "weights"]


@pytest.fixture
def no_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system without reflinks."""
    monkeypatch.setattr(blobs, "clone_file", lambda source, path: False)


def test_the_file_stays_its_owners(store: Store, weights: Path, tmp_path: Path, no_clones: None) -> None:
    """Later writes to the file do not change the store, unless the file itself was given to the store."""
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
    # A file system with clones copies no data.
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
        found = read_bundled(path)
        recipe = Recipe(sources=[path], parameters=json.loads(found.parameters))
        list(create(store, MINE, recipe))
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
    # Also once for a model in the store.
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
    with pytest.raises(ModelNotFoundError, match="model 'none' not found"):
        list(create(store, MINE, Recipe(sources=[ModelName.parse("none")])))


def test_a_link_in_from_names_a_model(tmp_path: Path) -> None:
    link = "https://huggingface.co/a/b-GGUF/blob/main/b-Q4_K_M.gguf"
    recipe = recipe_of(Modelfile.parse(f"FROM {link}"), tmp_path)
    assert recipe.sources == [ModelName.parse("hf.co/a/b-GGUF:Q4_K_M")]
