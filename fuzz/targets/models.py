"""Models, projectors, adapters and drafts: whole files that the loader takes, and their first answer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import chaski
from chaski.convert.convert import convert
from fuzz.gguf_form import mutate_gguf, whole_file
from fuzz.scratch import folder, written
from fuzz.target import Target
from tests import drafts
from tests.image.pictures import png
from tests.tiny_llama import write_tiny_llama
from tests.tiny_vision import DATA, write_text_part

__all__ = ["SEEING", "TARGETS"]

SEEING = "mistral3"
"""The tiny model of `tests/data/vision` for which projectors are made."""

_OPTIONS: dict[str, Any] = {
    "context": 64,
    "threads": 1,
    "parallel": 1,
    "num_batch": 64,
    "prompt_cache": False,
}


def model(data: bytes) -> None:
    """A model loads and answers the same twice, or is refused."""
    with chaski.load(written(whole_file(data), "model.gguf"), **_OPTIONS) as loaded:
        if loaded.pooling is not None:
            loaded.embed(["a"])
        else:
            _assert_same_answers(loaded)


def adapter(data: bytes) -> None:
    """An adapter loads and changes an answer the same way twice, or is refused."""
    path = written(whole_file(data), "adapter.gguf")
    with chaski.load(_base(), adapters={"it": path}, **_OPTIONS) as loaded:
        _assert_same_answers(loaded, adapter="it")


def projector(data: bytes) -> None:
    """An encoder of images loads for a model and encodes an image, or is refused."""
    path = written(whole_file(data), "projector.gguf")
    with chaski.load(_seeing(), projector=path, **{**_OPTIONS, "context": 256}) as loaded:
        loaded.generate("[img-0]", images=[png(20, 33)], num_predict=1, temperature=0)


def draft(data: bytes) -> None:
    """With a draft, a model gives the answer that it gives without it, or the draft is refused."""
    path = written(whole_file(data), "draft.gguf")
    target, alone = _drafted()
    with chaski.load(target, draft=path, **_OPTIONS) as loaded:
        assert _answer(loaded) == alone, "the draft changed the answer"


def _assert_same_answers(loaded: chaski.LLM, **options: Any) -> None:
    assert _answer(loaded, **options) == _answer(loaded, **options), "two answers differ"


def _answer(loaded: chaski.LLM, **options: Any) -> list[int]:
    return list(loaded.generate([1, 2, 3], num_predict=3, temperature=0, **options).token_ids)


@cache
def _base() -> Path:
    return write_tiny_llama(folder() / "base.gguf")


@cache
def _seeing() -> Path:
    return write_text_part(DATA / f"{SEEING}.gguf", folder() / "seeing.gguf")


@cache
def _drafted() -> tuple[Path, list[int]]:
    """Return the target of the drafts, and its answer without a draft."""
    path = folder() / "target.gguf"
    convert(drafts.TARGETS["qwen3"], path, "F32")
    with chaski.load(path, **_OPTIONS) as loaded:
        return path, _answer(loaded)


TARGETS = (
    Target("model", model, mutate_gguf, 10),
    Target("adapter", adapter, mutate_gguf, 10),
    Target("projector", projector, mutate_gguf, 10),
    Target("draft", draft, mutate_gguf, 10),
)
