"""Beam search against recorded answers of transformers (tools/fixtures/make_beams.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.runner.generation.beam_search import BeamOptions, BeamSearch
from chaski.runner.generation.request import GenerationRequest
from chaski.sample import SamplingOptions

DATA = Path(__file__).parents[2] / "data"


def search(case: dict[str, Any]) -> BeamSearch:
    request = GenerationRequest(
        prompt=case["prompt"],
        limit=len(case["prompt"]) + case["max"],
        context=128,
        sampling=SamplingOptions(temperature=0),
        end_ids=frozenset(case["eos"]),
    )
    return BeamSearch(request, BeamOptions(case["beams"], case["lp"], case["early"]))


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "lfm2"])
def test_answers_and_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    convert(DATA / "checkpoints" / name, tmp_path / "model.gguf", "F32")
    cases = json.loads((DATA / "beams" / f"{name}.json").read_text())
    with chaski.load(tmp_path / "model.gguf", context=128, parallel=8, threads=1, kv_type="f32") as model:
        alone = [search(case) for case in cases]
        for each in alone:
            model.engine.submit(each)
            model.engine.wait(each)
        together = [search(case) for case in cases]
        for each in together:
            model.engine.submit(each)
        for each in together:
            model.engine.wait(each)
    for case, found, beside in zip(cases, alone, together, strict=True):
        assert [[one.token_id for one in each.answer] for each in found._finished] == case["out"], case
        assert np.allclose([each.score for each in found._finished], case["scores"], atol=2e-4)
        assert found._finished == beside._finished, "alone and beside others"
