"""Lookup of model sources, drafts, checkpoints, and models that cannot be made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import ModelNotFoundError, OptionError, StoreError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest, ModelName
from chaski.store.create import create
from chaski.store.describe import modelfile_of
from chaski.store.model import find_model, read_model
from chaski.store.modelfile import Modelfile
from chaski.store.recipe import Recipe, recipe_of
from chaski.store.store import Store
from chaski.store.weights import inspect
from tests.convert.checkpoints import changed
from tests.convert.quantized import replacing, settings, stored_as
from tests.store.creating import MINE, made, store, weights
from tests.store.stores import assert_valid, put_by_hand
from tests.tiny_llama import write_tiny_llama

__all__ = ["store", "weights"]


def config_of(store: Store, name: ModelName = MINE) -> dict[str, object]:
    found: dict[str, object] = json.loads(store.blobs.read(store.entry(name).manifest.config.digest))
    return found


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
    with pytest.raises(ModelNotFoundError, match="empty is a folder without a GGUF file of a model"):
        source("./empty")
    with pytest.raises(OptionError, match="invalid model name"):
        source("a b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    """The draft is a file or another model's weights, also in other types; derived models have it, too."""
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
        (Recipe(sources=[weights], draft=Digest.parse(model.draft.name)), True),
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
    with pytest.raises(OptionError, match="is not a text model"):
        made(store, f"FROM {weights}\nDRAFT ./projector.gguf", tmp_path)


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


def test_a_checkpoint_that_is_quantized(store: Store, tmp_path: Path) -> None:
    stored_as(changed("qwen3", tmp_path / "awq", {}), replacing("awq"), settings("awq"))
    model = made(store, "FROM ./awq", tmp_path)
    with open_gguf(model.path) as file:
        assert file.tensors["blk.0.attn_k.weight"].type is QuantType.F16


def test_a_checkpoint_that_cannot_be_converted_leaves_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"architectures": ["X"]}')
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="'X' cannot be converted"):
        made(store, "FROM ./broken", tmp_path)
    assert store.locate(MINE) is None
    assert not any((tmp_path / "models" / "blobs").iterdir())
