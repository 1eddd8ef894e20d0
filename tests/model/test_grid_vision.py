"""Vision models whose encoder takes images of any size against transformers, starting from image files.

tools/fixtures/make_grid_vision.py makes the models and the expected values, and the projectors by llama.cpp's
converter.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model import encoder as encoder_program
from chaski.model.file_dialects import open_model
from chaski.model.projectors.qwenvl import encoder
from chaski.model.registry import build_model, vision_of
from tests import families
from tests.image.pictures import picture, png
from tests.rewriting import all_tensors
from tests.tiers import long_after
from tests.tiny_vision import DATA, write_text_part
from tests.vision_oracle import BACKENDS, BoundEncoder, answers_at_once, said

PADS = {
    "glm4v": "<|image|>",
    "glm4vmoe": "<|image|>",
    "hunyuanvl": "<｜hy_place▁holder▁no▁102｜>",
    "hunyuanvldeep": "<｜hy_place▁holder▁no▁102｜>",
    "hunyuanvluntied": "<｜hy_place▁holder▁no▁102｜>",
    "kimik25": "<|media_pad|>",
    "kimik25wide": "<|media_pad|>",
    "kimivl": "<|media_pad|>",
    "paddleocr": "<|IMAGE_PLACEHOLDER|>",
    "paddleocrbias": "<|IMAGE_PLACEHOLDER|>",
    "paddleocrdeep": "<|IMAGE_PLACEHOLDER|>",
}
MODELS = [*PADS]
_KIMI = "<|im_user|>user<|im_middle|>PICTURE[EOS]<|im_assistant|>assistant<|im_middle|>"
CHATS = {
    "hunyuanvl": "PICTURE<｜hy_User｜>",
    "kimik25": _KIMI,
    "kimivl": _KIMI,
    "paddleocr": "User: PICTUREAssistant: ",
}
PROMPTS = ["odd", "two", "large", "text"]


@cache
def expected(model: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{model}.npz") as arrays:
        return dict(arrays)


def file(model: str) -> Path:
    return DATA / f"{model}.gguf"


@cache
def given(prompt: str) -> tuple[str, list[bytes]]:
    """Return a prompt's text and images."""
    wanted = expected(MODELS[0])
    return str(wanted[f"{prompt}/text"]), [png(*size) for size in wanted.get(f"{prompt}/sizes", [])]


def logits(path: Path, prompt: str, **options: Any) -> NDArray[np.float32]:
    with chaski.load(path, **{"context": 160, "threads": 1, **options}) as model:
        return np.asarray(model.logits(*given(prompt)))


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("model", long_after(4, MODELS))
def test_rows_equal_those_of_transformers(model: str, backend: str, tolerance: float) -> None:
    bound = BoundEncoder(file(model), backend)
    for prompt in PROMPTS[:-1] if backend == "cpu" else PROMPTS[:1]:
        rows = [bound.rows(bound.vision.read_image(data)) for data in given(prompt)[1]]
        wanted = expected(model)[f"{prompt}/rows"]
        np.testing.assert_allclose(np.concatenate(rows), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("model", long_after(4, MODELS))
def test_ids_logits_and_answers_equal_those_of_transformers(model: str) -> None:
    with chaski.load(file(model), context=160, kv_type="f32", threads=1) as loaded:
        (pad,) = loaded.tokenize(PADS[model])
        for prompt in PROMPTS:
            wanted = {key: expected(model)[f"{prompt}/{key}"] for key in ("ids", "logits", "greedy")}
            text, images = given(prompt)
            ids = np.array(loaded.tokenize(text, images=images))
            np.testing.assert_array_equal(np.where(ids < 0, pad, ids), wanted["ids"])
            found = np.asarray(loaded.logits(text, images))[::5]
            assert wanted["logits"].std() > 0.3
            np.testing.assert_allclose(found, wanted["logits"], rtol=0, atol=2e-4, err_msg=prompt)
            answer = loaded.generate(text, images, num_predict=16, temperature=0, ignore_eos=True)
            assert list(answer.token_ids) == wanted["greedy"].tolist()


@pytest.mark.parametrize("model", long_after(4, MODELS))
def test_the_projector_of_llama_cpps_converter(model: str, tmp_path: Path) -> None:
    text = write_text_part(file(model), tmp_path / "text.gguf")
    np.testing.assert_array_equal(
        logits(text, "two", projector=DATA / f"{model}-mmproj.gguf"), logits(file(model), "two")
    )
    np.testing.assert_array_equal(logits(text, "text"), logits(file(model), "text"))


@pytest.mark.parametrize("model", long_after(4, MODELS))
def test_bits_do_not_depend_on_others_and_on_pieces(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"num_predict": 6, "temperature": 0, "logprobs": True}
    whole = logits(file(model), "two")
    np.testing.assert_array_equal(logits(file(model), "two", num_batch=9, threads=2), whole)
    prompts = [given(prompt) for prompt in ("odd", "two", "text")]
    with chaski.load(file(model), context=160, parallel=1, prompt_cache=False) as loaded:
        alone = [said(loaded.generate(*prompt, **options)) for prompt in prompts]
    with chaski.load(file(model), context=160, parallel=3, num_batch=50) as loaded:
        assert answers_at_once(loaded, prompts, **options) == alone
        assert answers_at_once(loaded, prompts, **options) == alone
    monkeypatch.setattr(encoder, "_AT_ONCE", 2)
    monkeypatch.setattr(encoder_program, "_PIECE", 8)
    np.testing.assert_array_equal(logits(file(model), "two"), whole)


@pytest.mark.parametrize("model", CHATS)
def test_a_chat_contains_the_picture_where_the_template_has_it(model: str) -> None:
    options: Any = {"num_predict": 5, "temperature": 0}
    data = png(61, 33)
    with chaski.load(file(model), context=160, threads=1) as loaded:
        chat = loaded.chat([{"role": "user", "content": "what is it", "images": [data]}], **options)
        written = loaded.generate(CHATS[model].replace("PICTURE", "[img-0]what is it"), [data], **options)
        assert (chat.prompt_tokens, chat.token_ids) == (written.prompt_tokens, written.token_ids)


def test_a_long_picture_takes_at_most_half_of_the_context() -> None:
    for model in (name for name in MODELS if name.startswith("kimi")):
        with chaski.load(file(model), context=40, threads=1) as loaded:
            ids = np.array(loaded.tokenize("a [img-0]", images=[png(900, 40)]))
            assert 1 <= (ids < 0).sum() <= 20


def test_pictures_of_glm_are_between_its_own_tokens() -> None:
    """GLM 5.2 has the encoder of Kimi K2.5."""
    with (
        open_model(families.converted(next(name for name in families.FIRST if "glm_dsa" in name))) as text,
        open_model(DATA / "kimik25-mmproj.gguf") as projector,
    ):
        vision: Any = vision_of(build_model(text, projector))
        before, _, after = vision.read_image(png(20, 30)).layout
    assert (before, after) == ("<|begin_of_image|>", "<|end_of_image|>")


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((1, 100), (16, 1008)), ((9, 300), (16, 528)), ((300, 7), (656, 16)), ((90, 8), (176, 16))],
)
def test_thin_pictures_have_the_sizes_of_paddleocrs_processor(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    with open_model(file("paddleocr")) as source:
        vision: Any = vision_of(build_model(source))
        assert vision.resized(picture(*size)).shape == (*wanted, 3)


def test_a_table_that_is_not_a_square(tmp_path: Path) -> None:
    with open_gguf(file("glm4v")) as source:
        tensors = all_tensors(source)
        tensors["v.position_embd.weight"] = tensors["v.norm_embd.weight"]
        write_gguf(tmp_path / "a.gguf", dict(source.metadata), tensors)
    with pytest.raises(ModelError, match="has 40 places; it must be a square"):
        chaski.load(tmp_path / "a.gguf")
