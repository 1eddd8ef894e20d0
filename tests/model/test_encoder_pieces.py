"""Pictures of more patches than an encoder computes at once: in pieces, with the bits of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model import encoder as encoder_program
from chaski.model.projectors.qwenvl import encoder
from tests.image.pictures import png
from tests.rewriting import all_tensors
from tests.tiers import long_after
from tests.tiny_vision import DATA
from tests.vision_oracle import BoundEncoder, quantized

_SIZES = [(70, 90), (120, 40), (16, 16)]


@pytest.fixture(params=[3, 8, 64])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The patches of a piece, which need not be whole squares."""
    monkeypatch.setattr(encoder_program, "_PIECE", request.param)
    return int(request.param)


@pytest.mark.parametrize("kind", long_after(1, ["Q8_0", None, "Q4_K"]))
@pytest.mark.parametrize("model", ["qwen2vl", "qwen25vl", "qwen3vl", "qwen35"])
def test_rows_have_the_bits_of_the_whole(
    model: str, kind: str | None, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DATA / f"{model}.gguf"
    bound = BoundEncoder(path if kind is None else quantized(path, tmp_path / "q.gguf", kind), "cpu")
    images = [bound.vision.read_image(png(*size)) for size in _SIZES]
    whole = [bound.rows(image) for image in images]
    monkeypatch.setattr(encoder, "_AT_ONCE", 2)
    for image, rows in zip(images, whole, strict=True):
        np.testing.assert_array_equal(bound.rows(image), rows)


def test_rows_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = BoundEncoder(DATA / "qwen25vl.gguf", "reference")
    image = bound.vision.read_image(png(70, 90))
    whole = bound.rows(image)
    monkeypatch.setattr(encoder_program, "_PIECE", 8)
    monkeypatch.setattr(encoder, "_AT_ONCE", 2)
    np.testing.assert_allclose(bound.rows(image), whole, rtol=0, atol=1e-5)


def without_limits(model: str, target: Path) -> Path:
    """Write the model without limits of its pictures, as many projectors come."""
    with open_gguf(DATA / f"{model}.gguf") as source:
        metadata = {key: value for key, value in source.metadata.items() if "_pixels" not in key}
        write_gguf(target, metadata, all_tensors(source))
    return target


def test_a_picture_takes_at_most_half_of_the_context(tmp_path: Path) -> None:
    path, picture = without_limits("qwen3vl", tmp_path / "a.gguf"), png(300, 400)
    counts = []
    for context in (400, 1200):
        with chaski.load(path, context=context, threads=1) as model:
            counts.append(sum(token < 0 for token in model.tokenize("[img-0]", images=[picture])))
    assert counts[0] <= 200 < counts[1] <= 600
    assert counts[1] == 19 * 25


def test_a_large_picture_in_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, picture = without_limits("qwen3vl", tmp_path / "a.gguf"), png(300, 400)
    options: dict[str, Any] = {"context": 1200, "threads": 1}
    with chaski.load(path, **options) as model:
        whole = model.logits("see [img-0]", [picture])
    monkeypatch.setattr(encoder, "_AT_ONCE", 100)
    with chaski.load(path, **options) as model:
        np.testing.assert_array_equal(model.logits("see [img-0]", [picture]), whole)
