"""Tiny random models of T5, with the logits and tokens of transformers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import chaski
from chaski.convert.convert import convert
from chaski.runner.generation.output_sequences import LogitsSequence
from chaski.runner.results import outputs_of
from tests import families

VARIANTS = ("plain", "flan", "mt5", "umt5")


@cache
def known() -> dict[str, dict[str, Any]]:
    with np.load(families.DATA.parent / "t5.npz") as arrays:
        about: dict[str, dict[str, Any]] = json.loads(str(arrays["about"]))
        for key in arrays.files:
            variant, _, name = key.rpartition(".")
            if variant:
                about[variant][name] = arrays[key]
    return about


def converted(variant: str, folder: Path) -> Path:
    about = known()[variant]
    families.checkpoint(folder, about["config"], about["tensors"], about["seed"])
    convert(folder, folder / "model.gguf", "F32")
    return folder / "model.gguf"


def logits_after(model: chaski.LLM, prompt: list[int], answer: list[int]) -> np.ndarray[Any, Any]:
    """Return the logits after the first token of the decoder and after each token of an answer."""
    (first,) = model.prompts.outputs(prompt, max_outputs=16)
    return outputs_of(model.engine, [LogitsSequence([*first.tokens, *answer], (), first.images)])[0]
