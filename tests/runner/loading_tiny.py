"""Loads the tiny model of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chaski
from chaski.chat.requests import Generate
from chaski.runner.generation.generation import Generation

GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 24}


PROMPTS = ["hello there", "in the other end", "x", "an answer, and another one: 1234567890 " * 3]


def load(path: Path, **options: Any) -> chaski.LLM:
    return chaski.load(path, threads=2, **options)


def generation(model: chaski.LLM, ids: list[int], **options: Any) -> Generation:
    """Return the sequence that continues a prompt of ids."""
    sequence = model.prompts.generation(model.prompts.prepare(Generate(tuple(ids), options)))
    assert isinstance(sequence, Generation)
    return sequence
