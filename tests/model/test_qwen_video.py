"""Videos of Qwen 3-VL and Qwen 3.5 against transformers, starting from files.

tools/fixtures/make_qwen_video.py makes the expected values.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import chaski
from chaski.chat.image_rows import coordinates
from chaski.chat.layout import lay_out, placeholder
from chaski.errors import ImageError, UnsupportedError
from chaski.image import as_video
from tests.image.pictures import moving, png
from tests.tiny_vision import DATA
from tests.vision_oracle import BoundEncoder

MODELS = ["qwen3vl", "qwen35"]
TEXT = "<|im_start|>the [img-0]is it?<|im_end|>"


@cache
def expected(model: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{model}-video.npz") as arrays:
        return dict(arrays)


def webp(count: int, rate: float, height: int, width: int) -> bytes:
    """Return an animated file without losses."""
    first, *others = map(Image.fromarray, moving(count, height, width))
    file = BytesIO()
    options: dict[str, Any] = {"lossless": True, "exact": True, "duration": round(1000 / rate)}
    first.save(file, "WebP", save_all=True, append_images=others, **options)
    return file.getvalue()


def frame_files(count: int, height: int, width: int) -> list[bytes]:
    files = []
    for frame in moving(count, height, width):
        file = BytesIO()
        Image.fromarray(frame).save(file, "PNG")
        files.append(file.getvalue())
    return files


@cache
def video(name: str) -> bytes:
    """Return the videos of the script."""
    return as_video([webp(11, 5.0, 48, 64)]) if name == "sampled" else as_video(frame_files(7, 32, 16), 1.5)


@pytest.mark.parametrize("name", ["sampled", "listed"])
@pytest.mark.parametrize("model", MODELS)
def test_videos_equal_those_of_transformers(model: str, name: str) -> None:
    wanted = {key.partition("/")[2]: value for key, value in expected(model).items() if key.startswith(name)}
    encoder = BoundEncoder(DATA / f"{model}.gguf", "cpu")
    np.testing.assert_allclose(
        encoder.rows(encoder.vision.read_video(video(name))), wanted["rows"], rtol=0, atol=1e-4
    )
    with chaski.load(DATA / f"{model}.gguf", context=512, kv_type="f32") as loaded:
        (pad,) = loaded.tokenize("<|video_pad|>")
        ids = np.array(loaded.tokenize(TEXT, images=[video(name)]))
        np.testing.assert_array_equal(np.where(ids < 0, pad, ids), wanted["ids"])
        logits = np.asarray(loaded.logits(TEXT, [video(name)]))[::7]
        np.testing.assert_allclose(logits, wanted["logits"], rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["sampled", "listed"])
def test_coordinates_are_those_of_transformers(name: str) -> None:
    encoder = BoundEncoder(DATA / "qwen3vl.gguf", "cpu")
    with chaski.load(DATA / "qwen3vl.gguf", context=512) as loaded:

        def encode(text: str) -> list[int]:
            return list(loaded.tokenize(text))

        image = encoder.vision.read_video(video(name))
        text = TEXT.replace("[img-0]", placeholder(0))
        prompt = lay_out(text, [image], encode, encode)
    found = coordinates(prompt.images, range(len(prompt.tokens)))
    np.testing.assert_array_equal(found, expected("qwen3vl")[f"{name}/coordinates"])


def test_answers_do_not_depend_on_chunks_and_the_cache() -> None:
    prompts: list[Any] = [(TEXT, [video("sampled")]), (TEXT + "[img-1]", [video("listed"), png(20, 30)])]
    path, options = DATA / "qwen3vl.gguf", {"context": 512, "threads": 1}
    with chaski.load(path, **options, prompt_cache=False) as model:
        whole = [np.asarray(model.logits(*prompt)) for prompt in prompts]
    with chaski.load(path, **options, num_batch=9) as model:
        for prompt, logits in zip(prompts, whole, strict=True):
            np.testing.assert_array_equal(np.asarray(model.logits(*prompt)), logits)


def test_a_long_video_is_scaled_to_half_of_the_context() -> None:
    with chaski.load(DATA / "qwen3vl.gguf", context=40, threads=1) as model:
        rows = sum(token < 0 for token in model.tokenize("[img-0]", images=[video("sampled")]))
    assert rows <= 20
    with (
        chaski.load(DATA / "qwen3vl.gguf", context=16, threads=1) as model,
        pytest.raises(ImageError, match="20 frames of the video take more than half of the context"),
    ):
        model.tokenize("[img-0]", images=[as_video(frame_files(20, 16, 16))])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\0\x18ftypmp42" + bytes(50), "the video cannot be read|needs the package av"),
        (as_video([png(20, 30)]), "a PNG image is not a video; send it as an image"),
        (as_video([webp(1, 5.0, 16, 16)]), "a single frame; send it as an image"),
        (
            as_video([png(20, 30), png(30, 20)]),
            "frame 1 of the video has 20 x 30 pixels, but frame 0",
        ),
        (as_video([png(20, 30)] * 769), "has 769 frames; at most 768 are allowed"),
        (as_video([png(20, 30), b"\x89PNG\r\n\x1a\n"]), "the PNG image cannot be read"),
        (as_video([webp(4, 5.0, 32, 32)[:-40]]), "cannot be read"),
        (as_video([png(2, 30), b""])[:-3], "the video cannot be read"),
    ],
)
def test_what_is_not_a_video(data: bytes, message: str) -> None:
    vision = BoundEncoder(DATA / "qwen3vl.gguf", "reference").vision
    with pytest.raises(chaski.ChaskiError, match=message):
        vision.read_video(data)


def test_models_of_images_only_refuse_videos() -> None:
    with (
        chaski.load(DATA / "qwen2vl.gguf", context=96) as model,
        pytest.raises(UnsupportedError, match="this model reads images, not videos; send some frames"),
    ):
        model.generate("[img-0]", images=[video("listed")])


def test_a_file_of_a_camera() -> None:
    """A compressed file, whose frames come at its rate; a Python caller names its bytes or its path."""
    av = pytest.importorskip("av")
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 64, 48
        for frame in moving(30, 48, 64):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    vision = BoundEncoder(DATA / "qwen3vl.gguf", "reference").vision
    image = vision.read_video(file.getvalue())
    times = [part.partition(" ")[0] for part in image.layout if isinstance(part, str) and "<" in part[:1]]
    assert [part for part in times if part != "<|vision_end|>"] == ["<0.3", "<1.4", "<2.6"]
    assert image.grid == (3, 4)
    assert image.num_rows == 36
    with pytest.raises(ImageError, match="the video cannot be read"):
        vision.read_video(file.getvalue()[:900])
