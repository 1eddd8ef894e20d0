"""Vision models against transformers: the encoder layer by layer, and logits of prompts with images.

tools/fixtures/make_vision.py makes the files and the expected values. An image has more rows than the text
model's window.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.errors import ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model.multimodal import Image
from tests.backends import USUAL
from tests.image.pictures import png
from tests.rewriting import all_tensors
from tests.tiny_vision import DATA, PROMPTS, expected, image, logits, write_text_part
from tests.vision_oracle import BACKENDS, BoundEncoder, quantized

GEMMA = DATA / "gemma3.gguf"


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
def test_every_layer_and_the_rows_equal_those_of_transformers(backend: str, tolerance: float) -> None:
    encoder = BoundEncoder(GEMMA, backend)
    whole = image("gemma3", 0)
    order = np.argsort(whole.arrays["places"])
    *wanted, _ = expected("gemma3")["layers"]  # the last state is after the norm that rows pass
    for depth, (found, state) in enumerate(
        zip(encoder.states(whole, encoder.vision.v.blk), wanted, strict=True)
    ):
        np.testing.assert_allclose(found[order], state, rtol=0, atol=tolerance, err_msg=f"state {depth}")
    for index, rows in enumerate(expected("gemma3")["rows"]):
        np.testing.assert_allclose(encoder.rows(image("gemma3", index)), rows, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
def test_rows_of_pictures_of_odd_sizes_equal_those_of_transformers(backend: str, tolerance: float) -> None:
    encoder = BoundEncoder(GEMMA, backend)
    sizes, wanted = (expected("gemma3")[name] for name in ("pictures", "pictures.rows"))
    assert wanted.std() > 0.3
    for size, rows in zip(sizes, wanted, strict=True):
        found = encoder.rows(encoder.vision.read_image(png(*size)))
        np.testing.assert_allclose(found, rows, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_equal_those_of_transformers(prompt: str, backend: str, tolerance: float) -> None:
    wanted = expected("gemma3")
    found = logits(GEMMA, prompt, backend=backend, kv_type="f32")
    assert len(found) == len(wanted[f"{prompt}.ids"])
    np.testing.assert_allclose(
        found[wanted[f"{prompt}.places"]], wanted[f"{prompt}.logits"], rtol=0, atol=tolerance
    )


@pytest.fixture(scope="module", params=["as it is", "Q4_0"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file, and one with quantized matrices, whose products use other kernels."""
    if request.param == "as it is":
        return GEMMA
    return quantized(GEMMA, tmp_path_factory.mktemp("quantized") / "gemma3.gguf", request.param)


@pytest.mark.parametrize("prompt", ["one", "two", "side by side"])
def test_logits_do_not_depend_on_chunks_and_threads(path: Path, prompt: str) -> None:
    whole = logits(path, prompt, kv_type="f16")
    for options in ({"num_batch": 9}, {"num_batch": 14, "threads": 2}, {"prompt_cache": False}):
        np.testing.assert_array_equal(logits(path, prompt, kv_type="f16", **options), whole)


def test_an_encoder_that_is_used_is_not_called_missing(caplog: pytest.LogCaptureFixture) -> None:
    """Its tensors may have other names in Ollama's files."""
    with chaski.load(GEMMA, context=128) as model:
        assert model.has_vision
    assert "text only" not in caplog.text


def test_text_does_not_depend_on_the_encoder(tmp_path: Path) -> None:
    text_only = write_text_part(GEMMA, tmp_path / "text.gguf")
    np.testing.assert_array_equal(logits(text_only, "text"), logits(GEMMA, "text"))


@pytest.mark.parametrize("prompt", ["text", "two"])
def test_the_encoder_may_be_in_a_file_of_their_own(tmp_path: Path, prompt: str) -> None:
    text = write_text_part(GEMMA, tmp_path / "text.gguf")
    found = logits(text, prompt, projector=DATA / "gemma3-mmproj.gguf")
    np.testing.assert_array_equal(found, logits(GEMMA, prompt))


def test_a_projector_for_a_model_that_takes_none() -> None:
    with pytest.raises(UnsupportedError, match="architecture 'gpt-oss' do not take a projector"):
        chaski.load(DATA.parent / "architectures" / "gpt-oss.gguf", projector=DATA / "gemma3-mmproj.gguf")


def test_a_projector_of_another_model() -> None:
    with pytest.raises(UnsupportedError, match="type 'gemma3' does not work with architecture 'llama'"):
        chaski.load("guide", projector=DATA / "gemma3-mmproj.gguf")


def test_a_projector_beside_a_model_with_an_encoder() -> None:
    with pytest.raises(ModelError, match=r"gemma3\.gguf also contains tensor mm\.input_projection\.weight"):
        chaski.load(GEMMA, projector=DATA / "gemma3-mmproj.gguf")


@pytest.mark.parametrize("size", [0, 5])
def test_an_image_must_be_whole_patches(size: int, tmp_path: Path) -> None:
    with open_gguf(GEMMA) as file:
        tensors = all_tensors(file)
        write_gguf(tmp_path / "a.gguf", {**file.metadata, "gemma3.vision.image_size": size}, tensors)
    with pytest.raises(
        ModelError,
        match=rf"{size} x {size} pixels (cannot be split into|do not contain) patches",
    ):
        chaski.load(tmp_path / "a.gguf")


def test_a_projector_that_is_not_there() -> None:
    with pytest.raises(ModelNotFoundError, match=r"the projector file .*nowhere\.gguf"):
        chaski.load(GEMMA, projector="nowhere.gguf")


def test_images_with_other_pixels_or_another_layout_are_other_images() -> None:
    one = image("gemma3", 0)
    again = Image({name: array.copy() for name, array in one.arrays.items()}, one.num_rows, one.layout)
    assert again.digest == one.digest
    changed = {**one.arrays, "pixels": one.arrays["pixels"] + np.float32(1e-6)}
    others = [Image(changed, one.num_rows, one.layout), Image(one.arrays, one.num_rows, (one.num_rows,))]
    assert len({one.digest, *(other.digest for other in others)}) == 3


def test_tiles_are_encoded_one_by_one() -> None:
    encoder = BoundEncoder(GEMMA, USUAL)
    one, two = image("gemma3", 0), image("gemma3", 1)
    both = Image.of_tiles([*one.tiles, *two.tiles], (one.num_rows + two.num_rows,))
    assert [tile.num_rows for tile in both.tiles] == [one.num_rows, two.num_rows]
    assert both.nbytes == one.nbytes + two.nbytes
    assert both.digest != Image.of_tiles([*two.tiles, *one.tiles], both.layout).digest
    alone = np.concatenate([encoder.rows(one), encoder.rows(two)])
    np.testing.assert_array_equal(encoder.rows(both), alone)


def test_patches_come_square_by_square() -> None:
    places: NDArray[np.int32] = image("gemma3", 0).arrays["places"]
    assert places[:8].tolist() == [0, 1, 6, 7, 2, 3, 8, 9]
    assert sorted(places) == list(range(36))
