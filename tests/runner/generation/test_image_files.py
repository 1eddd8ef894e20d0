"""Image files for a model: from this process, through event loops, and in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

import chaski
from chaski.errors import ImageError, OptionError
from tests.tiny_vision import DATA, image

GEMMA = DATA / "gemma3.gguf"
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 6}


def picture(format: str = "PNG", seed: int = 1) -> bytes:
    """Return a picture with odd sizes that is not square."""
    pixels = np.random.default_rng(seed).integers(0, 256, (31, 45, 3), np.uint8)
    file = BytesIO()
    Picture.fromarray(pixels).save(file, format)
    return file.getvalue()


@pytest.fixture(scope="module")
def model() -> Iterator[chaski.LLM]:
    with chaski.load(GEMMA, context=128, threads=1) as loaded:
        yield loaded


def test_bytes_paths_and_other_formats_of_one_picture_are_one_image(
    model: chaski.LLM, tmp_path: Path
) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(picture())
    answers = [
        model.generate("see [img-0] the", [one], **GREEDY)
        for one in (picture(), path, str(path), picture("BMP"))
    ]
    assert {answer.token_ids for answer in answers} == {answers[0].token_ids}
    assert [answer.evaluated_tokens for answer in answers[1:]] == [1, 1, 1]
    assert model.generate("see [img-0] the", [picture(seed=2)], **GREEDY).evaluated_tokens > 9


def test_what_is_no_image_is_refused(model: chaski.LLM) -> None:
    with pytest.raises(ImageError, match="not an image"):
        model.generate("see", [b"GIF without more"[3:]])
    with pytest.raises(ImageError, match="cannot be read"):
        model.generate("see", [picture()[:100]])


def test_repeated_placeholders_are_counted_before_they_are_laid_out(model: chaski.LLM) -> None:
    with pytest.raises(OptionError, match="repeats placeholders of images, whose rows are"):
        model.generate("[img-0]" * 20_000, [picture()], **GREEDY)


def test_a_placeholder_with_a_huge_number_is_text(model: chaski.LLM) -> None:
    text = f"see [img-0] [img-{'9' * 30}]"
    assert model.generate(text, [picture()], **GREEDY).prompt_tokens > 30
    with pytest.raises(OptionError, match="the prompt has"):
        model.generate(f"[img-{'9' * 5000}]", [picture()], truncate=False, **GREEDY)


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def test_event_loops_and_other_processes_give_the_same_answers(model: chaski.LLM) -> None:
    files = [picture(), picture("JPEG", 2)]
    messages = [{"role": "user", "content": [*parts("a "), {"type": "image"}, *parts(" b")], "images": files}]
    wanted = model.generate("[img-1]x[img-0]", files, **GREEDY), model.chat(messages, **GREEDY)

    async def asked() -> tuple[chaski.Answer, chaski.Answer]:
        loop = model.asynchronous()
        generated = await loop.generate("[img-1]x[img-0]", files, **GREEDY)
        return generated, await loop.chat(messages, **GREEDY)

    for found, answer in zip(asyncio.run(asked()), wanted, strict=True):
        assert found.token_ids == answer.token_ids
    with chaski.Worker(GEMMA, context=128, threads=1) as worker:
        assert worker.info().has_vision
        assert worker.generate("[img-1]x[img-0]", files, **GREEDY).token_ids == wanted[0].token_ids
        assert worker.chat(messages, **GREEDY).token_ids == wanted[1].token_ids
        with pytest.raises(ImageError, match="not an image"):
            worker.generate("x", [b"nothing"])
        with pytest.raises(OptionError, match="as files only"):
            worker.generate("x", [image("gemma3", 0)])
