"""Beam searches in the engine: with others, joined, cancelled, interrupted, and with cached prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.chat.requests import Generate
from chaski.errors import ComputationError, OptionError
from chaski.runner.engine.sequence import Sequence
from tests.cache_checks import assert_whole
from tests.interrupting import Lines, raise_exception, raise_signal
from tests.random_mixes import MODELS, Mix, Model

PROMPT = list(range(5, 33))
SEARCH: dict[str, Any] = {"num_beams": 3, "num_predict": 6, "logprobs": True}
NAMED = {model.name: model for model in MODELS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searches")


def sequence(model: chaski.LLM, rank: int = 0, prompt: list[int] = PROMPT, **options: Any) -> Sequence:
    prepared = model.prompts.prepare(Generate(tuple(prompt), SEARCH | options))
    return model.prompts.generation(prepared, rank)


def told(model: chaski.LLM, asked: Sequence) -> list[Any]:
    """Return the events of a sequence without times."""
    events: list[Any] = []
    while not (events and isinstance(events[-1], chaski.Done)):
        model.engine.wait(asked)
        event = asked.events.popleft()
        if isinstance(event, Exception):
            raise event
        events.append(event)
    return [*events[:-1], events[-1].reason, events[-1].generated_tokens]


def ranked_by_hand(
    model: chaski.LLM, prompt: list[int], num_beams: int, count: int
) -> list[tuple[float, list[int]]]:
    """Return the answers of a search that recomputes every beam in each step; no beam ends early."""
    ends = model.tokenizer.eos_ids
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(count):
        found = []
        for score, answer in beams:
            logits = model.logits([*prompt, *answer])[-1].astype(np.float64)
            logprobs = logits - logits.max()
            logprobs -= np.log(np.exp(logprobs).sum())
            logprobs[[*ends, *model.tokenizer.suppressed_ids]] = -np.inf
            found += [(score + float(logprobs[token]), [*answer, token]) for token in range(len(logprobs))]
        beams = sorted(found, key=lambda each: -each[0])[:num_beams]
    return beams


@pytest.mark.parametrize("name", [*NAMED])
def test_beams_are_those_of_a_search_that_computes_all_anew(name: str, folder: Path) -> None:
    """It forks every kind of layer: windows, chunks, recurrent states, encoder states."""
    path = NAMED[name].path(folder)
    with chaski.load(path, context=64, parallel=3, threads=1, num_batch=16) as model:
        by_hand = ranked_by_hand(model, PROMPT, 3, 5)
        options: dict[str, Any] = SEARCH | {"num_predict": 5, "ignore_eos": True}
        found = model.generate_many([PROMPT], n=3, **options)
        assert [list(each.token_ids) for each in found] == [answer for _, answer in by_hand]
        for answer, (score, _) in zip(found, by_hand, strict=True):
            assert np.isclose(sum(each.logprob or 0 for each in answer.logprobs), score, atol=1e-4)
        assert_whole(model.engine)


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_random_searches_beside_others_find_what_they_find_alone(model: Model, folder: Path) -> None:
    mix = Mix(model, 5, 12, folder, searches=True)
    assert mix.run() == [], mix


def test_equal_searches_are_computed_once(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, parallel=4, threads=1) as model:
        alone = [told_alone(model, rank) for rank in range(3)]
        assert len({str(each) for each in alone}) == 3
        asked = [sequence(model, rank) for rank in (2, 0, 1, 0)]
        for each in asked:
            model.engine.submit(each)
        assert told(model, asked[0]) == alone[2]
        assert [bool(each.events) for each in asked[1:]] == [True] * 3, "all were told at once"
        assert [told(model, each) for each in asked[1:]] == [alone[0], alone[1], alone[0]]
        assert_whole(model.engine)


def told_alone(model: chaski.LLM, rank: int) -> list[Any]:
    asked = sequence(model, rank)
    model.engine.submit(asked)
    return told(model, asked)


@pytest.mark.parametrize("different", [{"cache_salt": "x"}, {"num_beams": 2}, {"length_penalty": 2.0}])
def test_others_are_searches_of_their_own(tiny_llama: Path, different: dict[str, Any]) -> None:
    with chaski.load(tiny_llama, parallel=6, threads=1) as model:
        first, second = sequence(model), sequence(model, **different)
        assert first.join([second]) is None
        assert second.join([first]) is None
        assert first.join([sequence(model)]) is not None


def test_who_joined_goes_on_when_the_first_one_leaves(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, parallel=3, threads=1) as model:
        alone = told_alone(model, 1)
        first, second = sequence(model), sequence(model, 1)
        for each in (first, second):
            model.engine.submit(each)
        for _ in range(3):
            model.engine._exclusive.run(model.engine._step)
        first.cancel()
        assert told(model, second) == alone
        assert_whole(model.engine)


def test_a_search_that_is_left_frees_all_its_slots(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, parallel=3, threads=1) as model:
        alone = model.generate(PROMPT, temperature=0, num_predict=4)
        for steps in range(6):
            asked = sequence(model, prompt=[*PROMPT, steps + 40])
            model.engine.submit(asked)
            for _ in range(steps):
                model.engine._exclusive.run(model.engine._step)
            asked.cancel()
            assert model.generate(PROMPT, temperature=0, num_predict=4).token_ids == alone.token_ids
            assert all(slot.is_free for slot in model.engine.prefix_cache.slots) or not steps
            assert_whole(model.engine)


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_search_goes_on_behind_a_failure_of_the_engine(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A Ctrl-C of another reader stops a step: slots are emptied, and everything is computed again."""
    with chaski.load(tiny_llama, parallel=4, threads=1, num_batch=16) as model:
        alone = [told_alone(model, rank) for rank in range(2)]
        asked = [sequence(model, rank) for rank in range(2)]
        for each in asked:
            model.engine.submit(each)
        for _ in range(steps):
            model.engine._exclusive.run(model.engine._step)
        with monkeypatch.context() as patch:
            patch.setattr(model.engine._program, "wait", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.engine._exclusive.run(model.engine._step)
        assert [told(model, each) for each in asked] == alone
        assert_whole(model.engine)


def _interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize(("name", "act"), [("llama", raise_signal), ("lfm2", raise_exception)])
def test_an_interrupt_at_a_line_ends_no_other_answer(
    name: str, act: Callable[[], None], folder: Path
) -> None:
    """Two requests share a search next to a third: those without interrupt get the answer alone."""
    left_out = "exclusive.py" if act is raise_exception else ""
    with chaski.load(NAMED[name].path(folder), context=64, parallel=4, threads=1, num_batch=16) as model:

        def asked() -> list[Sequence]:
            other = sequence(model, prompt=[40, 41, 42], num_beams=1, temperature=0)
            return [sequence(model, 1), other, sequence(model)]

        alone = [told_beside(model, [each], Lines(0, act))[0] for each in asked()]
        lines = Lines(0, act, left_out)
        told_beside(model, asked(), lines)
        every = [places[len(places) // 2] for places in lines.seen.values()]
        assert len(every) > 300
        kinds: Counter[type] = Counter()
        for at in every[::13]:
            found = told_beside(model, asked(), Lines(at, act, left_out))
            for each, whole in zip(found, alone, strict=True):
                kinds[type(each)] += 1
                assert (
                    each == whole
                    if isinstance(each, list)
                    else act is raise_exception or isinstance(each, KeyboardInterrupt)
                ), at
            assert told_beside(model, asked(), Lines(0, act)) == alone, at
            assert_whole(model.engine)
        assert kinds[list] > kinds[KeyboardInterrupt] > 10


def told_beside(model: chaski.LLM, asked: list[Sequence], lines: Lines) -> list[Any]:
    """Return the events of concurrent sequences, or the errors that ended them; count lines."""
    found: list[Any] = []
    for each in asked:
        model.engine.submit(each)
    with lines:
        for each in asked:
            try:
                found.append(told(model, each))
            except (KeyboardInterrupt, ComputationError) as error:
                found.append(error.with_traceback(None))
                each.cancel()
                lines.stop()
    for each in asked:
        each.cancel()
    return found


def test_a_failure_of_one_beam_ends_the_search(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chaski.load(tiny_llama, parallel=3, threads=1) as model:
        asked = sequence(model)
        model.engine.submit(asked)
        for _ in range(3):
            model.engine._exclusive.run(model.engine._step)
        monkeypatch.setattr(type(asked.members[0]), "take", lambda *arguments: 1 / 0)
        with pytest.raises(ComputationError, match="ZeroDivisionError"):
            told(model, asked)
        monkeypatch.undo()
        assert len(told_alone(model, 0)) > 2
        assert_whole(model.engine)


def test_a_search_wider_than_the_engine_is_refused_at_once(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, parallel=2, threads=1) as model:
        with pytest.raises(OptionError, match="num_beams is 3, but only 2 sequences are computed"):
            model.generate(PROMPT, **SEARCH)
        with pytest.raises(OptionError, match=r"prompt 0: .*|num_beams is 3"):
            model.generate_many([PROMPT], **SEARCH)
        assert model.generate(PROMPT, **SEARCH | {"num_beams": 2}).token_ids, "and nobody waits behind it"


def test_searches_wait_for_enough_slots_in_their_turn(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, parallel=3, threads=1) as model:
        alone = told_alone(model, 0)
        before = [sequence(model, prompt=[40 + index], num_beams=1, temperature=0) for index in range(2)]
        search, behind = sequence(model), sequence(model, prompt=[50], num_beams=1, temperature=0)
        for each in (*before, search, behind):
            model.engine.submit(each)
        model.engine._exclusive.run(model.engine._step)
        assert not any(hasattr(each, "slot") for each in (search, behind))
        assert told(model, search) == alone
        assert told(model, behind)
