"""Encoders whose images are cut into tiles, against transformers, from image files to answers.

tools/fixtures/make_tiled.py makes the checkpoints and the expected numbers.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ImageError, ModelError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model.multimodal import Image
from tests.image import pictures
from tests.rewriting import all_tensors
from tests.tiled.prompts import SIZES, TEXTS
from tests.vision_oracle import BACKENDS, BoundEncoder, answers_at_once, quantized, said

DATA = Path(__file__).parents[1] / "data" / "tiled"
NAMES = sorted(path.name for path in DATA.iterdir())
# Tiles of each picture, including the whole picture.
TILES = {
    "granite-vision": {"high": 4, "wide": 4, "small": 3},
    "idefics3": {"high": 3, "wide": 3, "small": 5},
    "internvl": {"high": 3, "wide": 5, "small": 1},
    "lfm2-vl": {"high": 3, "wide": 5, "small": 1},
    "llama4": {"high": 4, "wide": 5, "small": 1},
    "llava-next": {"high": 4, "wide": 4, "small": 3},
    "minicpmv": {"high": 4, "wide": 5, "small": 1},
}

NUM_RESUMED = 32

on_both = pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)


@cache
def expected(name: str) -> dict[str, Any]:
    with np.load(DATA / name / "expected.npz") as arrays:
        return dict(arrays)


def png(name: str) -> bytes:
    return pictures.png(*SIZES[name])


def images(text: str) -> list[bytes]:
    return [png(each) for each in TEXTS[text][1]]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def whole(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write text and vision into one file."""
    target = tmp_path_factory.mktemp(name) / "whole.gguf"
    convert(DATA / name, target, "F32")
    return target


def logits(path: Path, text: str, **options: Any) -> NDArray[np.float32]:
    with chaski.load(path, **{"context": 192, "threads": 1, **options}) as model:
        return np.asarray(model.logits(TEXTS[text][0], images(text)))


@on_both
def test_every_layer_and_the_rows_equal_those_of_transformers(
    name: str, backend: str, tolerance: float, whole: Path
) -> None:
    encoder = BoundEncoder(whole, backend)
    for each in SIZES:
        image = encoder.vision.read_image(png(each))
        assert len(image.tiles) == TILES[name][each]
        rows = expected(name)[f"{each}.rows"]
        assert rows.std() > 0.3
        np.testing.assert_allclose(encoder.rows(image), rows, rtol=0, atol=tolerance)
    first = encoder.vision.read_image(png("wide")).tiles[0]
    states = encoder.states(Image.of_tiles([first], (first.num_rows,)), encoder.vision.v.blk)
    for depth, (state, layer) in enumerate(zip(states, expected(name)["wide.layers"], strict=True)):
        np.testing.assert_allclose(state, layer, rtol=0, atol=tolerance, err_msg=f"state {depth}")


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_the_published_processor(name: str, text: str, whole: Path) -> None:
    wanted = expected(name)[f"{text}.ids"]
    with chaski.load(whole, context=192) as model:
        found = np.array(model.tokenize(TEXTS[text][0], images=images(text), add_special=True))
    assert len(found) == len(wanted)
    np.testing.assert_array_equal(found[found >= 0], wanted[found >= 0])
    assert len(set(wanted[found < 0].tolist())) <= 1


@on_both
@pytest.mark.parametrize("text", TEXTS)
def test_logits_equal_those_of_transformers(
    name: str, text: str, backend: str, tolerance: float, whole: Path
) -> None:
    wanted = expected(name)
    assert wanted[f"{text}.logits"].std() > 0.3
    found = logits(whole, text, backend=backend, kv_type="f32")[wanted[f"{text}.places"]]
    np.testing.assert_allclose(found, wanted[f"{text}.logits"], rtol=0, atol=tolerance)


def test_greedy_answers_equal_those_of_transformers(name: str, whole: Path) -> None:
    options: dict[str, Any] = {"temperature": 0, "num_predict": 32, "ignore_eos": True}
    with chaski.load(whole, context=192, kv_type="f32") as model:
        for text in TEXTS:
            answer = model.generate(TEXTS[text][0], images(text), **options)
            assert list(answer.token_ids) == expected(name)[f"{text}.greedy"].tolist(), text


@pytest.mark.parametrize("text", TEXTS)
def test_one_file_is_as_two(name: str, text: str, whole: Path, tmp_path: Path) -> None:
    parts = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(DATA / name, parts[0], "F32", projector=parts[1])
    np.testing.assert_array_equal(logits(parts[0], text, projector=parts[1]), logits(whole, text))


@pytest.mark.parametrize("type", [None, "Q4_0"])
def test_logits_do_not_depend_on_chunks_and_threads(type: str | None, whole: Path, tmp_path: Path) -> None:
    path = whole if type is None else quantized(whole, tmp_path / "quantized.gguf", type)
    at_once = logits(path, "two")
    np.testing.assert_array_equal(logits(path, "two", num_batch=7, threads=2), at_once)
    np.testing.assert_array_equal(logits(path, "two", num_batch=1), at_once)


@pytest.fixture(scope="module")
def resampler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the text model of MiniCPM-V into one file, with the encoder next to it."""
    folder = tmp_path_factory.mktemp("resampler")
    convert(DATA / "minicpmv", folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder / "text.gguf"


def test_a_resampler_of_an_older_version_is_refused(resampler: Path, tmp_path: Path) -> None:
    with open_gguf(resampler.with_name("mmproj.gguf")) as file:
        metadata = {**file.metadata, "clip.minicpmv_version": 2}
        write_gguf(tmp_path / "older.gguf", metadata, all_tensors(file))
    with pytest.raises(
        UnsupportedError, match=r"minicpmv_version 2 is not supported; supported from MiniCPM-V 2\.6"
    ):
        chaski.load(resampler, projector=tmp_path / "older.gguf")


def test_the_version_of_a_resampler_is_a_number_with_a_sign(resampler: Path) -> None:
    """llama.cpp aborts with another type."""
    int32, version = 5, 3
    entry = b"clip.minicpmv_version" + struct.pack("<Ii", int32, version)
    assert entry in resampler.with_name("mmproj.gguf").read_bytes()


def test_an_image_that_is_a_line_is_refused(resampler: Path) -> None:
    with chaski.load(resampler, projector=resampler.with_name("mmproj.gguf"), context=192) as model:
        with pytest.raises(ImageError, match=r"would become 1 x \d+ patches .* less long and narrow"):
            model.generate("What is this?", [pictures.png(1, 300)])
        assert len(model.tokenize("", images=[pictures.png(2, 40)])) > 9


def test_sequences_with_images_are_as_alone(name: str, whole: Path) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 6}
    prompts = [(text, images(each)) for each, (text, _) in TEXTS.items()]
    with chaski.load(whole, context=192, parallel=1, prompt_cache=False) as model:
        alone = [said(model.generate(*prompt, **greedy)) for prompt in prompts]
    with chaski.load(whole, context=192, parallel=3, num_batch=16) as model:
        assert answers_at_once(model, prompts, **greedy) == alone
        again = model.generate(*prompts[2], **greedy)
    assert said(again) == alone[2]
    # Convolutions continue where their states were kept, which is not at every token.
    assert again.evaluated_tokens == 1 or (name == "lfm2-vl" and again.evaluated_tokens < NUM_RESUMED)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"clip.vision.tile_size": 30}, ModelError, "2 to 5 tiles of 30 pixels with 4 to 9 rows"),
        ({"clip.vision.max_tiles": 1}, ModelError, "2 to 1 tiles"),
        ({"clip.vision.min_image_tokens": 10}, ModelError, "10 to 9 rows"),
        ({"clip.vision.projector.scale_factor": 0}, ModelError, "squares of 0"),
        ({"clip.vision.use_thumbnail": False}, UnsupportedError, "use_thumbnail = false is not supported"),
    ],
)
def test_tiles_of_lfm2_that_cannot_be(
    metadata: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    convert(DATA / "lfm2-vl", tmp_path / "text.gguf", "F32", projector=tmp_path / "mmproj.gguf")
    with open_gguf(tmp_path / "mmproj.gguf") as file:
        write_gguf(tmp_path / "other.gguf", {**file.metadata, **metadata}, all_tensors(file))
    with pytest.raises(error, match=message):
        chaski.load(tmp_path / "text.gguf", projector=tmp_path / "other.gguf")


def test_images_whose_sides_are_too_unequal_for_lfm2(tmp_path: Path) -> None:
    convert(DATA / "lfm2-vl", tmp_path / "whole.gguf", "F32")
    with chaski.load(tmp_path / "whole.gguf") as model, pytest.raises(ImageError, match="400 x 1 pixels"):
        model.generate("[img-0]", [pictures.png(1, 400)])


@pytest.fixture(scope="module")
def llama4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the text model of Llama 4 into one file, with the encoder next to it."""
    folder = tmp_path_factory.mktemp("llama4")
    convert(DATA / "llama4", folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder / "text.gguf"


def test_tiles_of_llama4_are_spelled_line_by_line(llama4: Path) -> None:
    spelled = (
        "<|image_start|>{0}<|tile_x_separator|>{0}<|tile_y_separator|>"
        "{0}<|tile_x_separator|>{0}<|tile_y_separator|><|image|>{0}<|image_end|>"
    ).format("<|patch|>" * 9)
    with chaski.load(llama4, projector=llama4.with_name("mmproj.gguf"), context=192) as model:
        found = np.array(model.tokenize("[img-0]", images=[pictures.png(44, 45)]))
        wanted = np.array(model.tokenize(spelled))
    assert len(found) == len(wanted)
    np.testing.assert_array_equal(found[found >= 0], wanted[found >= 0])


def test_a_norm_of_llama4_may_have_a_name_of_gemma4(llama4: Path, tmp_path: Path) -> None:
    """Some releases of llama.cpp's converter wrote it."""
    with open_gguf(llama4.with_name("mmproj.gguf")) as file:
        tensors = {
            name.replace(".ln2.", ".attn_post_norm."): each for name, each in all_tensors(file).items()
        }
        assert tensors.keys() != file.tensors.keys()
        write_gguf(tmp_path / "renamed.gguf", file.metadata, tensors)
    renamed = logits(llama4, "one", projector=tmp_path / "renamed.gguf")
    np.testing.assert_array_equal(renamed, logits(llama4, "one", projector=llama4.with_name("mmproj.gguf")))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"clip.vision.projector.scale_factor": 4}, "6 x 6 patches cannot be split into 4 x 4 squares"),
        ({"clip.vision.preproc_max_tiles": 0}, "cannot have 0 tiles"),
        ({"clip.vision.attention.head_count": 4}, "24 elements in 4 heads cannot be split into pairs"),
        ({"clip.vision.pixel_shuffle_ratio": 0.0}, "pixel_shuffle_ratio is 0.0"),
    ],
)
def test_sizes_of_llama4_that_cannot_be(
    metadata: dict[str, Any], message: str, llama4: Path, tmp_path: Path
) -> None:
    with open_gguf(llama4.with_name("mmproj.gguf")) as file:
        write_gguf(tmp_path / "other.gguf", {**file.metadata, **metadata}, all_tensors(file))
    with pytest.raises(ModelError, match=message):
        chaski.load(llama4, projector=tmp_path / "other.gguf")
