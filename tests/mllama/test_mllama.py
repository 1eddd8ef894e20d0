"""Llama 3.2 Vision against transformers, with the same bits however it is computed.

tools/fixtures/make_mllama.py makes the checkpoint and the expected numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import AttendedImage, Batch
from chaski.ml import CPUOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.encoder import EncoderProgram
from chaski.model.program import Program
from chaski.model.registry import build_model, vision_of
from chaski.model.weights import place_weights
from tests.backends import USUAL
from tests.image import pictures
from tests.mllama.prompts import LAYERED, PROMPTS, SIZES
from tests.vision_oracle import BACKENDS, F32, BoundEncoder, quantized

DATA = Path(__file__).parents[1] / "data" / "mllama"

on_both = pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)


@cache
def expected() -> dict[str, Any]:
    with np.load(DATA / "expected.npz") as arrays:
        return dict(arrays)


def png(name: str) -> bytes:
    return pictures.png(*SIZES[name])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mllama") / "mllama.gguf"
    convert(DATA, target, "F32")
    return target


@pytest.fixture(scope="module", params=["as it is", "Q4_0"])
def any_path(path: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file, and one with quantized matrices, whose products use other kernels."""
    if request.param == "as it is":
        return path
    return quantized(path, tmp_path_factory.mktemp("quantized") / "mllama.gguf", request.param)


class Runs:
    """The model with its image encoder."""

    def __init__(self, path: Path, backend: str = USUAL, threads: int = 2) -> None:
        file = open_gguf(path)
        model = build_model(file)
        opened = open_backend(backend, CPUOptions(threads=threads))
        place_weights(model, file, opened)
        self.cache = build_cache(
            opened, model.layer_kinds(), CacheSize(1, 64, 64), KVTypes(DType.F32, DType.F32)
        )
        self.vision = vision_of(model)
        self.program = Program(model, self.cache, opened, 64, 64)
        self._encoder = EncoderProgram(self.vision, opened, DType.F32)
        opened.load(lambda _: None)

    def encode(self, name: str) -> F32:
        return self._encoder.encode(self.vision.read_image(png(name)))

    def logits(self, prompt: str, most: int = 64) -> F32:
        """Return logits at all positions that are not cached yet, in batches of at most `most` tokens."""
        parts = PROMPTS[prompt]
        begins = {0, *(index for index, part in enumerate(parts) if isinstance(part, str)), len(parts)}
        found = []
        begin = self.cache.length(0)
        while begin < len(parts):
            end = min(begin + most, min(stop for stop in begins if stop > begin))
            found.append(self._forward(prompt, begin, end))
            begin = end
        return np.concatenate(found)

    def _forward(self, prompt: str, begin: int, end: int) -> F32:
        count, name = end - begin, PROMPTS[prompt][begin]
        places = np.arange(count, dtype=np.int32)
        encoded = self.encode(name) if isinstance(name, str) else None
        first = next((index for index, part in enumerate(PROMPTS[prompt]) if isinstance(part, str)), 0)
        attended = [] if encoded is None else [AttendedImage(0, begin, len(encoded), first)]
        ids = expected()[f"{prompt}.ids"][begin:end]
        batch = Batch(ids, begin + places, np.zeros_like(places), places, attended=attended, encoded=encoded)
        return self.program.forward(batch).copy()


@pytest.fixture(scope="module")
def runs(path: Path) -> dict[str, Runs]:
    return {backend: Runs(path, backend) for backend, _ in BACKENDS}


@pytest.fixture(scope="module")
def encoder(path: Path) -> dict[str, BoundEncoder]:
    return {backend: BoundEncoder(path, backend) for backend, _ in BACKENDS}


@on_both
@pytest.mark.parametrize("name", LAYERED)
def test_every_layer_equals_that_of_transformers(
    name: str, backend: str, tolerance: float, encoder: dict[str, BoundEncoder]
) -> None:
    """It compares the image's tiles: local layers, then the layers after the used states."""
    vision = encoder[backend].vision
    image = vision.read_image(png(name))
    states = encoder[backend].states(image, vision.v.blk, getattr(vision.v, "global").blk)
    wanted = expected()[f"{name}.layers"]
    assert wanted.std(axis=(1, 2)).min() > 0.3
    for depth, (found, layer) in enumerate(zip(states[:, : image.num_rows], wanted, strict=True)):
        np.testing.assert_allclose(found, layer, rtol=0, atol=tolerance, err_msg=f"state {depth}")


@on_both
@pytest.mark.parametrize("name", SIZES)
def test_encoded_images_equal_those_of_transformers(
    name: str, backend: str, tolerance: float, encoder: dict[str, BoundEncoder]
) -> None:
    assert expected()[f"{name}.rows"].std() > 0.3
    found = encoder[backend].rows(encoder[backend].vision.read_image(png(name)))
    np.testing.assert_allclose(found, expected()[f"{name}.rows"], rtol=0, atol=tolerance)


@on_both
@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_equal_those_of_transformers(
    prompt: str, backend: str, tolerance: float, runs: dict[str, Runs]
) -> None:
    runs[backend].cache.remove(0, 0)
    found = runs[backend].logits(prompt)
    assert expected()[f"{prompt}.logits"].std() > 0.3
    np.testing.assert_allclose(found, expected()[f"{prompt}.logits"], rtol=0, atol=tolerance)


def test_results_do_not_depend_on_chunks_threads_and_the_cache(any_path: Path) -> None:
    runs, alone = Runs(any_path), Runs(any_path, threads=1)
    for name in SIZES:
        np.testing.assert_array_equal(alone.encode(name), runs.encode(name))
    for prompt, parts in PROMPTS.items():
        runs.cache.remove(0, 0)
        whole = runs.logits(prompt)
        for most in (7, 1):
            alone.cache.remove(0, 0)
            np.testing.assert_array_equal(alone.logits(prompt, most), whole)
        for length in range(0, len(parts), 3):
            kept = runs.cache.resumable(0, length)
            runs.cache.remove(0, length)
            assert runs.cache.length(0) == kept
            np.testing.assert_array_equal(runs.logits(prompt), whole[kept:])


def test_text_before_an_image_is_what_it_is_without_one(path: Path) -> None:
    runs = Runs(path)
    before = PROMPTS["one"].index("high")
    with_image = runs.logits("one")[:before]
    runs.cache.remove(0, 0)
    ids = expected()["one.ids"][:before]
    places = np.arange(before, dtype=np.int32)
    alone = runs.program.forward(Batch(ids, places, np.zeros_like(places), places))
    np.testing.assert_array_equal(alone, with_image)


def test_images_of_the_same_grid_differ_and_others_are_refused(path: Path) -> None:
    vision = vision_of(build_model(open_gguf(path)))
    assert vision is not None
    read = vision.read_image
    assert read(png("small")).digest == read(png("small")).digest
    assert len({read(png(name)).digest for name in SIZES}) == len(SIZES)
    assert [read(png(name)).num_rows for name in ("small", "high", "wide", "large")] == [10, 20, 40, 40]
