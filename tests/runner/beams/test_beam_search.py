"""Beam search against recorded answers of transformers (tools/fixtures/make_beams.py), and its options."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.chat.beams import BeamOptions
from chaski.convert.convert import convert
from chaski.errors import OptionError
from chaski.formats.gguf import open_gguf
from chaski.runner.beams import BeamSearch
from chaski.runner.generation.request import GenerationRequest
from chaski.sample import SamplingOptions
from tests.adapters import adapted_names, random_adapter

DATA = Path(__file__).parents[2] / "data"


def search(case: dict[str, Any]) -> BeamSearch:
    request = GenerationRequest(
        prompt=case["prompt"],
        limit=len(case["prompt"]) + case["max"],
        context=128,
        sampling=SamplingOptions(temperature=0),
        end_ids=frozenset(case["eos"]),
    )
    return BeamSearch(
        request, BeamOptions(num_beams=case["beams"], length_penalty=case["lp"], early_stopping=case["early"])
    )


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(name, marks=pytest.mark.long) for name in ("gemma3", "lfm2"))]
)
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
        assert [[one.token_id for one in each.answer] for each in found.answers.found] == case["out"], case
        assert np.allclose([each.score for each in found.answers.found], case["scores"], atol=2e-4)
        assert found.answers.found == beside.answers.found, "alone and beside others"


def test_answers_of_a_search_by_every_way_to_a_model(tiny_llama: Path) -> None:
    """This process, event loops and a worker return the n best answers, the best one first."""
    options: dict[str, Any] = {"num_beams": 3, "num_predict": 6, "logprobs": True, "top_logprobs": 2}
    prompts = ["hello there", "in the other end"]

    async def answered(model: Any) -> list[chaski.Answer]:
        found: list[chaski.Answer] = await model.generate_many(prompts, n=2, **options)
        return [*found, await model.generate(prompts[0], **options)]

    with chaski.load(tiny_llama, parallel=4, threads=1) as model:
        expected = model.generate_many(prompts, n=2, **options)
        expected.append(model.generate(prompts[0], **options))
        in_loop = asyncio.run(answered(model.asynchronous()))
        greedy = model.generate(prompts[0], **options | {"num_beams": 1, "temperature": 0})
    with chaski.Worker(tiny_llama, parallel=4, threads=1) as worker:
        apart = worker.generate_many(prompts, n=2, **options)
        apart.append(worker.generate(prompts[0], **options))
        with pytest.raises(OptionError, match="num_beams is 5, but only 4"):
            worker.generate(prompts[0], num_beams=5)
    assert [said(each) for each in in_loop] == [said(each) for each in expected]
    assert [said(each) for each in apart] == [said(each) for each in expected]
    assert said(expected[0]) == said(expected[4])
    sums = [sum(each.logprob or 0 for each in answer.logprobs) for answer in (*expected[:2], greedy)]
    assert sums[0] >= max(sums[1:]), "the best one is at least as likely as the others"
    for answer in expected:
        assert len(answer.logprobs) == len(answer.token_ids)
        tops = [each.top_logprobs or () for each in answer.logprobs]
        assert all(len(top) == 2 and top[0].logprob >= top[1].logprob for top in tops)


def said(answer: chaski.Answer) -> tuple[Any, ...]:
    return answer.text, answer.token_ids, answer.logprobs, answer.done_reason


def test_what_ends_and_cuts_an_answer(tiny_llama: Path) -> None:
    options: dict[str, Any] = {"num_beams": 3, "num_predict": 8}
    with chaski.load(tiny_llama, parallel=3, threads=1) as model:
        whole = model.generate("hello there", **options)
        assert whole.logprobs == ()
        cut = model.generate("hello there", stop=whole.text[2:4], **options)
        assert (cut.text, cut.done_reason) == (whole.text[:2], "stop")
        ended = model.generate("hello there", stop_token_ids=[whole.token_ids[1]], **options)
        assert whole.token_ids[1] not in ended.token_ids
        full = model.generate(list(range(5, 45)), num_beams=2)
        assert full.prompt_tokens + full.done.generated_tokens <= model.context + 1
        for stream in (model.stream, lambda text, **given: model.stream_chat([], **given)):
            with pytest.raises(OptionError, match="has no stream"):
                stream("hello there", **options)
        with pytest.raises(OptionError, match="num_beams of 3 has no answer 4; ask for at most 3 answers"):
            model.generate_many(["hello there"], n=4, **options)
        with pytest.raises(OptionError, match=r"option temperature is 0\.5"):
            model.generate("hello there", temperature=0.5, **options)


def test_searches_are_computed_with_their_adapters(tiny_llama: Path, tmp_path: Path) -> None:
    with open_gguf(tiny_llama) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    for seed, name in enumerate(("one", "two"), 1):
        random_adapter(tmp_path / f"{name}.gguf", shapes, seed, rank=4, size=0.5)
    adapters = {name: tmp_path / f"{name}.gguf" for name in ("one", "two")}
    options: dict[str, Any] = {"num_beams": 3, "num_predict": 6, "logprobs": True}
    ways = [{}, {"adapter": "one"}, {"adapter": "two"}]

    async def together(model: Any) -> list[chaski.Answer]:
        return await asyncio.gather(*(model.generate("hello there", **options, **way) for way in ways))

    with chaski.load(tiny_llama, adapters=adapters, parallel=9, threads=1) as model:
        alone = [model.generate("hello there", **options, **way) for way in ways]
        beside = asyncio.run(together(model.asynchronous()))
    assert [said(each) for each in beside] == [said(each) for each in alone]
    assert len({each.text for each in alone}) == 3
