"""Answers to a prompt with a picture against llama.cpp; needs xllamacpp, so run it by hand.

llama.cpp makes at least 70 rows from a picture, so the tiny encoders have positions for as many. It treats
the small model as a large one, whose rows see each other, since its hidden size is not that of E2B or E4B.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.runner.channels.worker.client import Worker
from tests.gemma4.prompts import NAMES
from tests.gemma4.test_gemma4 import DATA, changed
from tests.image.pictures import png
from tests.mtmd.answers import largest_difference

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

TEXT = "The runner carries\n[img-0]the load over the mountains."
ROWS, SIDE = 80, 8  # rows of the picture, and pixels along the side of each
PICTURE = (8 * SIDE, 10 * SIDE)
NEAR = 0.03  # its keys and values are in half precision
NUM_TOKENS = 6


@pytest.mark.parametrize("name", NAMES)
def test_the_most_likely_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    text, given, projector = (tmp_path / f"{part}.gguf" for part in ("text", "given", "projector"))
    convert(DATA / name, text, "F32", projector=given)
    with open_gguf(given) as file:
        size = file.get("clip.vision.embedding_length", int)
    table = np.random.default_rng(1).normal(0, 0.4, (2, 2 * ROWS, size)).astype(np.float32)
    metadata = {"clip.vision.image_max_pixels": ROWS * SIDE**2, "clip.vision.is_bidirectional": True}
    changed(given, projector, metadata, **{"v.position_embd.weight": table})
    options: Any = {"temperature": 0, "num_predict": NUM_TOKENS, "logprobs": True, "top_logprobs": 20}
    with chaski.load(text, projector=projector, context=256, kv_type="f32") as model:
        ours = model.generate(TEXT, [png(*PICTURE)], **options)
    with Worker(text, projector=str(projector), engine="llama.cpp", threads=1, context=256) as worker:
        theirs = worker.generate(TEXT, [png(*PICTURE)], **options)
    assert ours.prompt_tokens == theirs.prompt_tokens > ROWS
    count = len(theirs.token_ids)  # it does not report bytes of incomplete characters
    assert count > 2
    assert largest_difference(ours.logprobs[:count], theirs.logprobs) < NEAR
