"""Mistral 3 with Pixtral's encoder against transformers, starting from image files.

tools/fixtures/make_mistral3_vision.py makes the model and the expected values. Images have odd sizes, one is
larger than the longest edge, and prompts are longer than the trained context.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import GGUFError, ModelError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests.image.pictures import png
from tests.tiny_vision import DATA, write_text_part
from tests.vision_oracle import BACKENDS, F32, BoundEncoder, answers_at_once, quantized, said

FILE, PROJECTOR = DATA / "mistral3.gguf", DATA / "mistral3-mmproj.gguf"
PROMPTS = ["odd", "tall", "tiny", "two", "text"]

with np.load(DATA / "mistral3.npz") as arrays:
    EXPECTED = dict(arrays)


@cache
def images(prompt: str) -> list[bytes]:
    return [png(*size) for size in EXPECTED.get(f"{prompt}/sizes", [])]


def text(prompt: str) -> str:
    return str(EXPECTED[f"{prompt}/text"])


def logits(path: Path, prompt: str, **options: Any) -> F32:
    usual = {"context": 128, "threads": 1, "kv_type": "f16"}
    with chaski.load(path, **usual | options) as model:
        return np.asarray(model.logits(text(prompt), images(prompt)))


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("prompt", ["odd", "tall", "tiny"])
def test_every_layer_equals_that_of_transformers(prompt: str, backend: str, tolerance: float) -> None:
    encoder = BoundEncoder(FILE, backend)
    image = encoder.vision.read_image(images(prompt)[0])
    places = np.lexsort((image.arrays["column"], image.arrays["row"]))
    for depth, found in enumerate(encoder.states(image, encoder.vision.v.blk)):
        wanted = EXPECTED[f"{prompt}/layer{depth}"]
        np.testing.assert_allclose(found[places], wanted, rtol=0, atol=tolerance, err_msg=f"state {depth}")


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
def test_rows_of_images_equal_those_of_transformers(backend: str, tolerance: float) -> None:
    encoder = BoundEncoder(FILE, backend)
    for prompt in PROMPTS[:4]:
        found = [encoder.rows(encoder.vision.read_image(data)) for data in images(prompt)]
        wanted = EXPECTED[f"{prompt}/rows"]
        np.testing.assert_allclose(np.concatenate(found), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_equal_those_of_transformers(prompt: str, backend: str, tolerance: float) -> None:
    wanted = EXPECTED[f"{prompt}/logits"]
    found = logits(FILE, prompt, backend=backend, kv_type="f32")
    assert len(found) == len(EXPECTED[f"{prompt}/ids"])
    assert wanted.std() > 1
    np.testing.assert_allclose(found[EXPECTED[f"{prompt}/places"]], wanted, rtol=0, atol=tolerance)


def test_rows_of_squares_end_with_tokens_of_their_own() -> None:
    image = BoundEncoder(FILE, "reference").vision.read_image(png(20, 33))
    assert image.layout == (5, "[IMG_BREAK]", 5, "[IMG_BREAK]", 5, "[IMG_END]")
    assert image.num_rows == 15
    assert image.arrays["row"][:8].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert image.arrays["column"][:8].tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


@pytest.fixture(scope="module", params=["as it is", "Q4_0"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file, and one with quantized matrices, whose products use other kernels."""
    if request.param == "as it is":
        return FILE
    return quantized(FILE, tmp_path_factory.mktemp("quantized") / "mistral3.gguf", request.param)


@pytest.mark.parametrize("prompt", ["odd", "two"])
def test_logits_do_not_depend_on_chunks_and_threads(path: Path, prompt: str) -> None:
    whole = logits(path, prompt)
    for options in ({"num_batch": 9, "threads": 2}, {"num_batch": 1}, {"prompt_cache": False}):
        np.testing.assert_array_equal(logits(path, prompt, **options), whole)


def test_logits_do_not_depend_on_other_sequences_and_on_the_cache(path: Path) -> None:
    """It computes several prompts with images at once, and again from the cache."""
    options: Any = {"num_predict": 6, "temperature": 0, "logprobs": True}
    prompts = [(text(prompt), images(prompt)) for prompt in PROMPTS]
    with chaski.load(path, context=128, parallel=1, prompt_cache=False) as model:
        alone = [said(model.generate(*prompt, **options)) for prompt in prompts]
    with chaski.load(path, context=128, parallel=5, num_batch=50) as model:
        assert answers_at_once(model, prompts, **options) == alone
        assert answers_at_once(model, prompts, **options) == alone
        again = model.generate(*prompts[0], **options)
        assert again.evaluated_tokens == 1


def test_full_contexts_with_images_beside_each_other() -> None:
    """Dropped tokens and moved keys do not depend on other sequences."""
    options: Any = {"num_predict": 60, "temperature": 0, "logprobs": True, "num_keep": 2, "seed": 1}
    prompts = [(text(prompt), images(prompt)) for prompt in ("odd", "tiny", "text")]
    with chaski.load(FILE, context=96, parallel=1, prompt_cache=False) as model:
        answers = [model.generate(*prompt, **options) for prompt in prompts]
    assert any(answer.shifted_tokens for answer in answers)
    with chaski.load(FILE, context=96, parallel=3, num_batch=50) as model:
        assert answers_at_once(model, prompts, **options) == [said(answer) for answer in answers]


def test_text_does_not_depend_on_the_encoder(tmp_path: Path) -> None:
    text_only = write_text_part(FILE, tmp_path / "text.gguf")
    np.testing.assert_array_equal(logits(text_only, "text"), logits(FILE, "text"))
    with pytest.raises(UnsupportedError, match="does not see images"):
        logits(text_only, "odd")


# ---- llama.cpp's form: the encoder in a separate file ----


def changed_projector(folder: Path, **changed: Any) -> Path:
    """Write the projector with changed metadata."""
    with open_gguf(PROJECTOR) as file:
        tensors = {name: (dequantize(t.data, t.type, t.shape), t.type) for name, t in file.tensors.items()}
        write_gguf(folder / "projector.gguf", {**file.metadata, **changed}, tensors)
    return folder / "projector.gguf"


@pytest.mark.parametrize("prompt", ["two", "text"])
def test_the_encoder_may_be_in_a_file_of_their_own(tmp_path: Path, prompt: str) -> None:
    """Elements of heads have another order there, so sums are only nearly the same."""
    text_file = write_text_part(FILE, tmp_path / "text.gguf")
    found = logits(text_file, prompt, projector=PROJECTOR, kv_type="f32")
    wanted = EXPECTED[f"{prompt}/logits"]
    np.testing.assert_allclose(found[EXPECTED[f"{prompt}/places"]], wanted, rtol=0, atol=1e-3)


def test_an_encoder_with_another_activation(tmp_path: Path) -> None:
    text_file = write_text_part(FILE, tmp_path / "text.gguf")
    projector = changed_projector(tmp_path, **{"clip.use_silu": False, "clip.use_gelu": True})
    options: Any = {"projector": projector, "kv_type": "f32"}
    seen = [logits(text_file, "odd", backend=name, **options) for name in ("reference", "cpu")]
    np.testing.assert_allclose(seen[0], seen[1], rtol=0, atol=1e-3)
    assert np.abs(seen[1] - logits(FILE, "odd", kv_type="f32")).max() > 0.1


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"clip.use_silu": False}, UnsupportedError, r"neither clip\.use_silu nor clip\.use_gelu"),
        (
            {"clip.vision.attention.key_length": 18},
            ModelError,
            "18 elements cannot be split into pairs",
        ),
        ({"clip.vision.image_std": [0.5, 0.0, 0.5]}, ModelError, "image_std must be three numbers"),
        ({"clip.vision.image_size": "large"}, GGUFError, r"clip\.vision\.image_size"),
    ],
)
def test_what_a_projector_may_not_say(
    tmp_path: Path, changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    text_file = write_text_part(FILE, tmp_path / "text.gguf")
    projector = changed_projector(tmp_path, **changed)
    with pytest.raises(kind, match=message):
        chaski.load(text_file, projector=projector)
