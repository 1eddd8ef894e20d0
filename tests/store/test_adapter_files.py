"""Models with LoRA adapters in the store: sources of ADAPTER, storage, and adapters that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.errors import AdapterError, ChaskiError, ModelNotFoundError, OptionError
from chaski.formats.gguf import TensorInfo, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType
from chaski.model.file_dialects import open_model
from chaski.names import Digest, ModelName
from chaski.store.create import create
from chaski.store.describe import modelfile_of
from chaski.store.model import read_model
from chaski.store.modelfile import Modelfile
from chaski.store.pull import pull
from chaski.store.push import push
from chaski.store.recipe import CheckpointFiles, Recipe, recipe_of
from chaski.store.store import Store
from tests.adapters import adapted_names, metadata, random_adapter
from tests.convert.checkpoints import DATA
from tests.convert.test_lora import write_adapter
from tests.store.creating import MINE, made, store, weights
from tests.store.fake_registry import FakeRegistry
from tests.store.pulling import LOCAL, PACE
from tests.store.stores import assert_valid

__all__ = ["store", "weights"]

OTHER = ModelName.parse("other")


def adapter_of(weights: Path, path: Path, seed: int = 1) -> Path:
    with open_gguf(weights) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    return random_adapter(path, shapes, seed, rank=2)


def test_an_adapter_is_another_layer(store: Store, weights: Path, tmp_path: Path) -> None:
    adapter_of(weights, tmp_path / "one.gguf")
    model = made(store, f"FROM {weights}\nADAPTER ./one.gguf\nSYSTEM Be brief.", tmp_path)
    (path,) = model.adapters
    assert path.read_bytes() == (tmp_path / "one.gguf").read_bytes()
    layers = store.entry(MINE).manifest.layers
    assert [layer.media_type for layer in layers] == [
        f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter", "system")
    ]
    assert model.config.model_families == ("llama",)
    assert f"ADAPTER {path}\n" in str(modelfile_of(model))
    # The shown Modelfile makes the model again.
    again = made(store, str(modelfile_of(model)), tmp_path, OTHER)
    assert (again.path, again.adapters) == (model.path, model.adapters)
    store.remove(MINE)
    assert path.is_file()
    store.remove(OTHER)
    assert not path.exists()


def test_several_are_kept_in_order(store: Store, weights: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two", "three")):
        adapter_of(weights, tmp_path / f"{name}.gguf", seed)
    model = made(store, f"FROM {weights}\nADAPTER two.gguf\nADAPTER ./one.gguf", tmp_path)
    assert [path.read_bytes() for path in model.adapters] == [
        (tmp_path / f"{name}.gguf").read_bytes() for name in ("two", "one")
    ]
    # A derived model has them, too, each once; the name of a model selects its adapters.
    child = made(store, "FROM mine\nADAPTER three.gguf\nADAPTER two.gguf", tmp_path, OTHER)
    assert child.adapters[:2] == model.adapters
    assert [path.read_bytes() for path in child.adapters[2:]] == [(tmp_path / "three.gguf").read_bytes()]
    third = made(store, f"FROM {weights}\nADAPTER other", tmp_path, ModelName.parse("third"))
    assert third.adapters == child.adapters
    # FROM may name an adapter file, as in Ollama.
    assert made(store, f"FROM {weights}\nFROM one.gguf", tmp_path, OTHER).adapters == model.adapters[1:]
    with pytest.raises(OptionError, match="FROM must name before it"):
        made(store, "FROM one.gguf", tmp_path, OTHER)
    made(store, f"FROM {weights}", tmp_path, ModelName.parse("plain"))
    with pytest.raises(OptionError, match="model 'plain' has no adapter"):
        made(store, "FROM mine\nADAPTER plain", tmp_path, OTHER)


def test_a_folder_of_peft_is_converted(store: Store, tmp_path: Path) -> None:
    write_adapter(tmp_path / "tuned", "llama3")
    for named in ("./tuned", "./tuned/adapter_model.safetensors"):
        recipe = recipe_of(Modelfile.parse(f"FROM {DATA / 'llama3'}\nADAPTER {named}"), tmp_path)
        statuses = [step.status for step in create(store, MINE, recipe)]
        assert "converting adapter" in statuses
        (path,) = read_model(store, store.entry(MINE)).adapters
        with open_gguf(path) as file:
            assert file.get("adapter.lora.alpha", float) == 6
            assert file.get("general.name", str) == "tuned"
            assert len(file.tensors) == 28
    blobs = {
        name: store.blobs.add_stream([(tmp_path / "tuned" / name).read_bytes()])
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    list(create(store, OTHER, Recipe(sources=[MINE], adapters=[CheckpointFiles(blobs)])))
    assert_valid(store)
    first, second = read_model(store, store.entry(OTHER)).adapters
    assert first == path
    with open_gguf(second) as file:
        assert file.get("general.name", str) == "adapter"
    weights = {"adapter_model.safetensors": blobs["adapter_model.safetensors"]}
    with pytest.raises(ModelNotFoundError, match=r"no adapter_config\.json"):
        list(create(store, OTHER, Recipe(sources=[MINE], adapters=[CheckpointFiles(weights)])))


def test_what_does_not_fit_leaves_nothing(store: Store, weights: Path, tmp_path: Path) -> None:
    one = {"blk.0.attn_q.weight.lora_a": (np.ones((2, 8), np.float32), QuantType.F32)}
    write_gguf(tmp_path / "half.gguf", metadata(), one)
    one["blk.0.attn_q.weight.lora_b"] = (np.ones((32, 2), np.float32), QuantType.F32)
    write_gguf(tmp_path / "small.gguf", metadata(), one)
    write_gguf(tmp_path / "foreign.gguf", metadata("qwen2"), one)
    adapter_of(weights, tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "cut.gguf").read_bytes()[:-100])
    adapter_of(weights, tmp_path / "wild.gguf")
    infinite = np.float16(np.inf).tobytes()
    (tmp_path / "wild.gguf").write_bytes((tmp_path / "wild.gguf").read_bytes()[:-2] + infinite)
    write_adapter(tmp_path / "phi3", "phi3")
    for name, message in (
        ("half.gguf", r"^half\.gguf: tensor blk\.0\.attn_q\.weight\.lora_b is missing"),
        ("small.gguf", r"^small\.gguf: tensor .* has shape \(2, 8\)"),
        (
            "foreign.gguf",
            r"^foreign\.gguf: the adapter is for architecture 'qwen2', and the model is 'llama'",
        ),
        ("wild.gguf", r"^wild\.gguf: tensor .* not finite"),
        ("cut.gguf", "cut.gguf"),
        (str(weights), r"^tiny\.gguf: key 'general\.type' is 'model'"),
        ("./phi3", "has shape|no such matrices"),
        ("./nothing.gguf", r"ADAPTER \./nothing\.gguf: no such file"),
    ):
        with pytest.raises(ChaskiError, match=message):
            made(store, f"FROM {weights}\nADAPTER {name}", tmp_path)
        assert list(store.names()) == []
    digest = Digest("1" * 64)
    with pytest.raises(ChaskiError, match=str(digest.short)):
        list(create(store, MINE, Recipe(sources=[weights], adapters=[digest])))
    assert issubclass(AdapterError, ChaskiError)


def test_an_adapter_goes_to_a_registry_and_comes_back(store: Store, weights: Path, tmp_path: Path) -> None:
    adapter_of(weights, tmp_path / "one.gguf")
    with FakeRegistry().running() as registry:
        model = made(store, f"FROM {weights}\nADAPTER one.gguf", tmp_path)
        store.copy(MINE, registry.name())
        list(push(store, registry.name(), LOCAL, PACE))
        other = Store(tmp_path / "elsewhere")
        list(pull(other, registry.name(), LOCAL, PACE))
    assert_valid(other)
    (path,) = read_model(other, other.entry(registry.name())).adapters
    assert path.read_bytes() == model.adapters[0].read_bytes()
    store.remove(MINE)
    store.prune()
    assert read_model(store, store.entry(registry.name())).adapters == model.adapters


def as_it_is(tensor: TensorInfo) -> LazyTensor:
    return LazyTensor(tensor.shape, tensor.type, lambda: [tensor.data.view(np.uint8).reshape(-1)])


def test_models_in_other_names(store: Store, tmp_path: Path) -> None:
    """Ollama's converter has other names for gpt-oss and its matrices; adapters have llama.cpp's names."""
    convert(DATA / "gpt-oss", tmp_path / "ours.gguf", "F32")
    with open_gguf(tmp_path / "ours.gguf") as file:
        metadata = {key.replace("gpt-oss.", "gptoss."): value for key, value in file.metadata.items()}
        tensors = {
            name.replace("attn_output", "attn_out"): as_it_is(tensor) for name, tensor in file.tensors.items()
        }
        write_gguf(tmp_path / "theirs.gguf", metadata | {"general.architecture": "gptoss"}, tensors)
    write_adapter(tmp_path / "tuned", "gpt-oss")
    recipe = Recipe(sources=[tmp_path / "theirs.gguf"], adapters=[tmp_path / "tuned"])
    list(create(store, MINE, recipe, open_model=open_model))
    (path,) = read_model(store, store.entry(MINE)).adapters
    with open_gguf(path) as file:
        assert file.architecture == "gpt-oss"
        assert "blk.0.attn_output.weight.lora_a" in file.tensors


def test_the_manifest_is_that_of_ollama(store: Store, weights: Path, tmp_path: Path) -> None:
    adapter_of(weights, tmp_path / "one.gguf")
    made(store, f"FROM {weights}\nADAPTER one.gguf", tmp_path)
    config = json.loads(store.blobs.read(store.entry(MINE).manifest.config.digest))
    assert config["model_families"] == ["llama"]
    assert len(config["rootfs"]["diff_ids"]) == 2
