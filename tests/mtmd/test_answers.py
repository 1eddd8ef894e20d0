"""Answers after a picture against llama.cpp, for models with multi-axis rope; needs xllamacpp.

The picture needs no resizing. It is not square, so that the test notices swapped rows and columns, and text
follows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.runner.channels.worker.client import Worker
from tests.image.pictures import png
from tests.mtmd.answers import largest_difference
from tests.mtmd.files import text_and_projector

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

PICTURE = (48, 112)
PROMPTS = [
    "<|im_start|>user\nwhat is [img-0] in here, and of what is there more?<|im_end|>\n",
    "the other [img-0] one",
    "[img-0] it is",
    "what [img-0] is in here, and of what is there more? so",
]
NEAR = 0.03  # its keys and values are in half precision


@pytest.mark.parametrize("name", ["qwen2vl", "qwen25vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"])
def test_answers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    text, projector = text_and_projector(name, tmp_path)
    written = projector.write(tmp_path / "own.gguf")
    options: dict[str, Any] = {"temperature": 0, "num_predict": 1, "logprobs": True, "top_logprobs": 20}
    prompts = [(prompt, [png(*PICTURE)]) for prompt in PROMPTS]
    with chaski.load(text, projector=written, context=128, kv_type="f32") as model:
        ours = [model.generate(*prompt, **options) for prompt in prompts]
    with Worker(text, projector=str(written), engine="llama.cpp", threads=1, context=128) as worker:
        theirs = [worker.generate(*prompt, **options) for prompt in prompts]
    told = 0  # it does not report tokens that end within a character
    for own, other in zip(ours, theirs, strict=True):
        assert own.prompt_tokens == other.prompt_tokens > 21
        told += len(other.logprobs)
        assert largest_difference(own.logprobs, other.logprobs) < NEAR
    assert told
