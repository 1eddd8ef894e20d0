"""Blocks that propose tokens, with pictures: the answers stay the same, with multi-axis rope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.kvcache.batch import Batch
from chaski.model.proposing import ProposingProgram
from chaski.runner.speculation.ngram import NgramSpeculator
from tests.eagle3 import write_eagle3
from tests.image.pictures import png
from tests.own_heads import write_with_heads
from tests.tiny_vision import DATA
from tests.vision_oracle import answers_at_once, said

NAMES = ["qwen35", "qwen35moe", "qwen3vl with a draft"]
PROMPTS = [
    ("<|im_start|>user\n[img-0]what is in here<|im_end|>\n", [png(130, 91)]),
    ("[img-0]and[img-1][img-0]are they the same?", [png(20, 73), png(61, 33)]),
    ("the other one is in the corner of the street", []),
]
OPTIONS: dict[str, Any] = {"num_predict": 40, "temperature": 0, "ignore_eos": True, "logprobs": True}


@pytest.fixture(scope="module", params=NAMES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the arguments of `load`."""
    folder, name = tmp_path_factory.mktemp("heads"), request.param.split()[0]
    if name != request.param:
        model = DATA / f"{name}.gguf"
        return {"model": model, "draft": write_eagle3(model, folder / "draft.gguf")}
    return {"model": write_with_heads(name, folder / "model.gguf", folder=DATA)}


@pytest.fixture(autouse=True)
def nothing_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])


def loaded(files: dict[str, Path], **options: Any) -> chaski.LLM:
    return chaski.load(files["model"], draft=files.get("draft"), **{"context": 160, "threads": 2, **options})


def test_answers_are_the_same(files: dict[str, Path]) -> None:
    with loaded(files, parallel=1, prompt_cache=False) as model:
        plain = [model.generate(*prompt, **OPTIONS, draft_num_predict=0) for prompt in PROMPTS]
        assert not any(answer.done.proposed_tokens for answer in plain)
        alone = [model.generate(*prompt, **OPTIONS) for prompt in PROMPTS]
        assert all(answer.done.proposed_tokens for answer in alone)
    wanted = [said(answer) for answer in plain]
    assert [said(answer) for answer in alone] == wanted
    with loaded(files, parallel=3, num_batch=25) as model:
        assert answers_at_once(model, PROMPTS, **OPTIONS) == wanted
        assert answers_at_once(model, PROMPTS, **OPTIONS) == wanted


def test_answers_of_full_contexts_are_the_same(files: dict[str, Path]) -> None:
    options = {**OPTIONS, "num_predict": 90, "num_keep": 2}
    with loaded(files, parallel=2, context=96, prompt_cache=False) as model:
        plain = [model.generate(*prompt, **options, draft_num_predict=0) for prompt in PROMPTS]
        proposed = [model.generate(*prompt, **options) for prompt in PROMPTS]
    assert all(answer.shifted_tokens for answer in plain[:2])
    assert [said(answer) for answer in proposed] == [said(answer) for answer in plain]


def test_tokens_to_propose_are_turned_by_their_coordinates(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, saved = ProposingProgram._step, []

    def watched(self: ProposingProgram, batch: Batch, hidden: Any) -> Any:
        assert batch.coordinates is not None
        assert (batch.coordinates == batch.coordinates[:, :1]).all()
        saved.extend((batch.positions - batch.coordinates[:, 0]).tolist())
        return step(self, batch, hidden)

    monkeypatch.setattr(ProposingProgram, "_step", watched)
    with loaded(files) as model:
        model.generate(*PROMPTS[0], **OPTIONS)
    assert set(saved) == {48 - 8}, "48 rows in a grid of 8 by 6"
