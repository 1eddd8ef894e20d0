"""Prompts with images as ids, for counting and cutting: rows of image k are -1 - k."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import chaski
from chaski.chat.images import RecentImages
from chaski.errors import ImageError, OptionError
from chaski.model.multimodal import Image
from tests.image.pictures import png
from tests.tiny_vision import DATA

ONE, OTHER = png(20, 33), png(9, 3)
TEXT = "[INST]see [img-1] and [img-0] and [img-1][/INST]"


@pytest.fixture(scope="module")
def model() -> Iterator[chaski.LLM]:
    with chaski.load(DATA / "mistral3.gguf", context=128) as loaded:
        yield loaded


def test_ids_with_their_images_are_the_prompt(model: chaski.LLM) -> None:
    ids = model.tokenize(TEXT, images=[ONE, OTHER])
    assert [ids.count(-1), ids.count(-2)] == [15, 4]
    assert ids[0] == model.tokenizer.bos_id
    assert model.tokenize(TEXT, add_special=False, images=[ONE, OTHER]) == ids[1:]
    whole = model.logits(TEXT, [ONE, OTHER])
    np.testing.assert_array_equal(model.logits(ids, [ONE, OTHER]), whole)


def test_images_without_a_place_come_first(model: chaski.LLM) -> None:
    assert model.tokenize("hello", images=[ONE]) == model.tokenize("[img-0]hello", images=[ONE])
    ids = model.tokenize("[img-0]", images=[ONE])
    assert model.tokenize("[img-0][img-1]", images=[ONE, ONE]) == ids + ids[1:]  # the same image twice


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids: ids[: ids.index(-1)] + ids[ids.index(-1) + 1 :], "has lost some of its rows"),
        (lambda ids: [*ids, -1], "has lost some of its rows"),
        (lambda ids: [*ids, -2], "row of image 1, but there are 1"),
    ],
)
def test_images_must_be_whole(model: chaski.LLM, change: object, words: str) -> None:
    assert callable(change)
    ids = change(model.tokenize("[img-0]hello", images=[ONE]))
    with pytest.raises(OptionError, match=words):
        model.generate(ids, [ONE])


def test_rows_without_images_are_no_tokens(model: chaski.LLM) -> None:
    with pytest.raises(OptionError, match="token id -1 is not in"):
        model.generate(model.tokenize("[img-0]hello", images=[ONE]))


def test_files_are_read_once() -> None:
    """This holds while they are among the most recent ones."""
    read: list[bytes] = []

    class Processor:
        def read_image(self, data: bytes) -> Image:
            if data == b"bad":
                raise ImageError("bad")
            read.append(data)
            return Image({"pixels": np.zeros(25, np.float32)}, 1, (1,))

    recent = RecentImages(max_bytes=250)
    for name in (b"a", b"b", b"a", b"c", b"a", b"b"):
        recent.read(name, Processor())
    assert read == [b"a", b"b", b"c", b"b"]
    with pytest.raises(ImageError, match="bad"):
        recent.read(b"bad", Processor())
