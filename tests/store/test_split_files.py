"""Files in parts: every command that accepts a GGUF file accepts any part, and stores one whole file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest
from chaski.store.create import create
from chaski.store.model import StoredModel, find_model
from chaski.store.recipe import Recipe, gguf_sources
from chaski.store.store import Store
from tests.rewriting import write_split
from tests.store.creating import MINE, made, store, weights
from tests.store.stores import assert_valid
from tests.store.test_adapter_files import adapter_of

__all__ = ["store", "weights"]

Way = Callable[[Store, list[Path]], Path]


def of_path(number: int) -> Way:
    return lambda store, parts: parts[number]


def of_modelfile(number: int) -> Way:
    return lambda store, parts: made(store, f"FROM {parts[number]}", parts[0].parent).path


def of_folder(store: Store, parts: list[Path]) -> Path:
    return made(store, f"FROM {parts[0].parent}", parts[0].parent).path


def of_blobs(store: Store, parts: list[Path]) -> Path:
    """Return the names for `/api/create`, in any order."""
    recipe = Recipe(sources=gguf_sources(blobs_of(store, parts[::-1])))
    return created(store, recipe).path


def blobs_of(store: Store, parts: list[Path]) -> dict[str, Digest]:
    return {part.name: store.blobs.add(part.read_bytes()) for part in parts}


def created(store: Store, recipe: Recipe) -> StoredModel:
    list(create(store, MINE, recipe))
    assert_valid(store)
    return find_model(MINE.short, store)


WAYS: dict[str, Way] = {
    "a path, first part": of_path(0),
    "a path, last part": of_path(2),
    "FROM, first part": of_modelfile(0),
    "FROM, middle part": of_modelfile(1),
    "FROM, folder": of_folder,
    "blobs": of_blobs,
}


def content(file: GGUFFile) -> object:
    keys = {key for key in file.metadata if not key.startswith("split.")}
    return keys, {name: info.data.tobytes() for name, info in file.tensors.items()}


@pytest.fixture
def parts(weights: Path, tmp_path: Path) -> list[Path]:
    folder = tmp_path / "parts"
    folder.mkdir()
    return write_split(weights, folder)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_all_parts(store: Store, weights: Path, parts: list[Path], way: str) -> None:
    found = WAYS[way](store, parts)
    assert content(open_gguf(found)) == content(open_gguf(weights))
    if "path" not in way:
        assert "split.count" not in open_gguf(found).metadata
    with chaski.load(found, context=32) as model:
        assert model.generate("the", num_predict=2, temperature=0).text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_part_is_named(store: Store, parts: list[Path], way: str, missing: int) -> None:
    name = parts[missing].name
    parts[missing].unlink()
    left = [part for part in parts if part.is_file()]
    given = left if way == "blobs" else parts
    with pytest.raises(chaski.ChaskiError, match=rf"part {missing + 1} of 3 is missing: {name}|no such file"):
        open_gguf(WAYS[way](store, given))


def test_a_part_of_another_model_is_refused(store: Store, parts: list[Path]) -> None:
    keys = {"split.no": np.uint16(1), "split.count": np.uint16(3), "split.tensors.count": np.int32(21)}
    write_gguf(parts[1], keys, {"other.weight": (np.ones((1, 32), np.float32), QuantType.F32)})
    for way in ("FROM, first part", "blobs"):
        with pytest.raises(chaski.ChaskiError, match=r"'split.tensors.count' is \d+, the parts hold"):
            WAYS[way](store, parts)


def test_parts_are_quantized_as_one(store: Store, parts: list[Path]) -> None:
    recipe = Recipe(sources=gguf_sources(blobs_of(store, parts)), quantize="Q8_0")
    file = open_gguf(created(store, recipe).path)
    assert file.tensors["blk.0.ffn_up.weight"].type is QuantType.Q8_0


@pytest.mark.parametrize("as_blobs", [False, True])
def test_adapters_and_drafts_in_parts(
    store: Store, weights: Path, parts: list[Path], tmp_path: Path, as_blobs: bool
) -> None:
    adapter = adapter_of(weights, tmp_path / "one.gguf")
    folder = tmp_path / "adapter"
    folder.mkdir()
    of_adapter = write_split(adapter, folder)
    if as_blobs:
        (draft,) = gguf_sources(blobs_of(store, parts))
        adapters = gguf_sources(blobs_of(store, of_adapter))
        model = created(store, Recipe(sources=[weights], adapters=adapters, draft=draft))
    else:
        text = f"FROM {weights}\nADAPTER {of_adapter[1]}\nDRAFT {parts[2]}"
        model = made(store, text, tmp_path)
    assert model.draft is not None
    assert content(open_gguf(model.draft)) == content(open_gguf(weights))
    assert [content(open_gguf(path)) for path in model.adapters] == [content(open_gguf(adapter))]
