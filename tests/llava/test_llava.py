"""LLaVA 1.5 against transformers: CLIP and its projector before an ordinary Llama.

tools/fixtures/make_llava.py makes the checkpoint and the expected numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import StoredModel
from tests.image import pictures
from tests.llava.prompts import SIZES, TEXTS
from tests.vision_oracle import BACKENDS, BoundEncoder, answers_at_once, quantized, said

DATA = Path(__file__).parents[1] / "data" / "llava"

on_both = pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)


@cache
def expected() -> dict[str, Any]:
    with np.load(DATA / "expected.npz") as arrays:
        return dict(arrays)


def png(name: str) -> bytes:
    return pictures.png(*SIZES[name])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write text and vision into one file."""
    target = tmp_path_factory.mktemp("llava") / "llava.gguf"
    convert(DATA, target, "F32")
    return target


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write the text model, and its projector in llama.cpp's form."""
    folder = tmp_path_factory.mktemp("llava")
    convert(DATA, folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder / "text.gguf", folder / "mmproj.gguf"


def logits(path: Path, name: str, **options: Any) -> NDArray[np.float32]:
    text, pictures = TEXTS[name]
    with chaski.load(path, **{"context": 128, "threads": 1, **options}) as model:
        return np.asarray(model.logits(text, [png(each) for each in pictures]))


@on_both
def test_every_layer_and_the_rows_equal_those_of_transformers(
    backend: str, tolerance: float, whole: Path
) -> None:
    encoder = BoundEncoder(whole, backend)
    for name in SIZES:
        image = encoder.vision.read_image(png(name))
        wanted = expected()[f"{name}.layers"]
        assert wanted.std(axis=(1, 2)).min() > 0.3
        found = encoder.states(image, encoder.vision.v.blk)
        for depth, (state, layer) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(state, layer, rtol=0, atol=tolerance, err_msg=f"state {depth}")
        np.testing.assert_allclose(encoder.rows(image), expected()[f"{name}.rows"], rtol=0, atol=tolerance)


@on_both
@pytest.mark.parametrize("name", TEXTS)
def test_logits_equal_those_of_transformers(name: str, backend: str, tolerance: float, whole: Path) -> None:
    wanted = expected()[f"{name}.logits"]
    assert wanted.std() > 0.3
    np.testing.assert_allclose(logits(whole, name, backend=backend), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", TEXTS)
def test_one_file_is_as_two(name: str, whole: Path, parts: tuple[Path, Path]) -> None:
    text, projector = parts
    np.testing.assert_array_equal(logits(text, name, projector=projector), logits(whole, name))


@pytest.mark.parametrize("type", [None, "Q4_0"])
def test_logits_do_not_depend_on_chunks_and_threads(type: str | None, whole: Path, tmp_path: Path) -> None:
    path = whole if type is None else quantized(whole, tmp_path / "quantized.gguf", type)
    at_once = logits(path, "two")
    np.testing.assert_array_equal(logits(path, "two", num_batch=7, threads=2), at_once)
    np.testing.assert_array_equal(logits(path, "two", num_batch=1), at_once)


def test_sequences_with_images_are_as_alone(whole: Path) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 6}
    prompts = [(text, [png(each) for each in pictures]) for text, pictures in TEXTS.values()]
    with chaski.load(whole, context=96, parallel=1, prompt_cache=False) as model:
        alone = [said(model.generate(text, images, **greedy)) for text, images in prompts]
    with chaski.load(whole, context=96, parallel=3, num_batch=16) as model:
        assert answers_at_once(model, prompts, **greedy) == alone
        again = model.generate(*prompts[2], **greedy)
    assert said(again) == alone[2]
    assert again.evaluated_tokens == 1


def test_full_contexts_with_images_beside_each_other(whole: Path) -> None:
    """Dropped tokens and moved keys do not depend on other sequences."""
    long: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 70, "num_keep": 2}
    prompts = [(text, [png(each) for each in pictures]) for text, pictures in TEXTS.values()]
    with chaski.load(whole, context=64, parallel=1, prompt_cache=False) as model:
        answers = [model.generate(text, images, **long) for text, images in prompts]
    assert all(answer.shifted_tokens for answer in answers)
    with chaski.load(whole, context=64, parallel=3, num_batch=24) as model:
        assert answers_at_once(model, prompts, **long) == [said(answer) for answer in answers]


def changed(source: Path, target: Path, metadata: dict[str, Any], names: dict[str, str]) -> Path:
    """Write the same projector with changed metadata and parts of names."""
    with open_gguf(source) as file:
        tensors = {}
        for name, info in file.tensors.items():
            array = np.frombuffer(info.data.tobytes(), np.float32).reshape(info.shape)
            parts = [names.get(part, part) for part in name.split(".")]
            tensors[".".join(parts)] = (array, QuantType.F32)
        write_gguf(target, {**file.metadata, **metadata}, tensors)
    return target


def test_projectors_whose_ways_up_and_down_have_each_others_names(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    """As llama.cpp's first converter wrote them."""
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    swapped = changed(parts[1], tmp_path / "swapped.gguf", {}, names)
    found = logits(parts[0], "one", projector=swapped)
    np.testing.assert_array_equal(found, logits(parts[0], "one", projector=parts[1]))


def test_a_stored_projector_that_cannot_be_used_leaves_the_text(
    parts: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = changed(parts[1], tmp_path / "other.gguf", {"clip.projector_type": "ldp"}, {})
    opened = OpenedModel.of(StoredModel(None, parts[0], projectors=(other,)))
    file, projector = opened.file, opened.open_projector()
    assert projector is None
    assert "text only: " in caplog.text
    assert "projector of type 'ldp'" in caplog.text
    opened = OpenedModel.of(StoredModel(None, parts[0], projectors=(parts[1],)))
    file, projector = opened.file, opened.open_projector()
    assert projector is not None
    assert file.architecture == "llama"


GRID = {"clip.vision.image_grid_pinpoints": [28, 56]}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"clip.projector_type": "ldp"}, "projector of type 'ldp' .* supported: .*mlp"),
        (
            {"clip.vision.mm_patch_merge_type": "spatial_unpad"},
            "'spatial_unpad' without image_grid_pinpoints",
        ),
        ({**GRID, "clip.vision.mm_patch_merge_type": "spatial"}, "'spatial' with image_grid_pinpoints"),
        ({"clip.use_silu": True}, "use_silu is not supported"),
    ],
)
def test_what_other_projectors_do_is_refused(
    metadata: dict[str, Any], message: str, parts: tuple[Path, Path], tmp_path: Path
) -> None:
    other = changed(parts[1], tmp_path / "other.gguf", metadata, {})
    with pytest.raises(UnsupportedError, match=message):
        chaski.load(parts[0], projector=other)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"clip.vision.image_grid_pinpoints": [28, 56, 28]}, "must contain pairs of multiples of 28"),
        ({"clip.vision.image_grid_pinpoints": [28, 30]}, "must contain pairs of multiples of 28"),
        ({"clip.vision.image_grid_pinpoints": [0, 28]}, "must contain pairs of multiples of 28"),
        ({"clip.vision.feature_layer": [1, 4]}, r"feature_layer \[1, 4\] must list layers from 0 to 2"),
        ({"clip.vision.patch_size": 0}, r"clip\.vision\.patch_size is 0; with these tensors it must be 1 to"),
    ],
)
def test_numbers_that_fit_no_encoder(
    metadata: dict[str, Any], message: str, parts: tuple[Path, Path], tmp_path: Path
) -> None:
    other = changed(parts[1], tmp_path / "other.gguf", metadata, {})
    with pytest.raises(ModelError, match=message):
        chaski.load(parts[0], projector=other)
