"""Logits of prompts whose images have more mutually visible rows than a batch has outputs."""

from __future__ import annotations

import numpy as np
import pytest

import chaski
from chaski.runner.loading import reservation
from tests.tiny_vision import DATA, logits


@pytest.mark.parametrize("prompt", ["one", "two", "side by side"])
@pytest.mark.parametrize("most", [1, 3])
def test_more_rows_than_outputs(monkeypatch: pytest.MonkeyPatch, prompt: str, most: int) -> None:
    """The tiny images have few rows, so batches have fewer outputs here."""
    with chaski.load(DATA / "gemma3.gguf", context=128, parallel=1) as model:
        assert model.engine.max_outputs >= 16
    wanted = logits(DATA / "gemma3.gguf", prompt)
    monkeypatch.setattr(reservation, "_MIN_OUTPUTS", most)
    np.testing.assert_array_equal(logits(DATA / "gemma3.gguf", prompt), wanted)
    with chaski.load(DATA / "gemma3.gguf", context=128, parallel=1) as model:
        assert model.engine.max_outputs == most
        np.testing.assert_array_equal(model.logits([5, 9, 3, 7]), model.logits([5, 9, 3, 7, 2])[:4])
