"""Concurrent prompts with a common beginning: one of them computes it, and the others reuse it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ComputationError
from chaski.runner.engine.engine import Engine
from chaski.runner.generation.generation import Generation
from tests.random_mixes import MODELS, Model
from tests.runner.engine.counting_program import CountingProgram, finish, make, request, step

PROMPT = list(range(100, 200))


def submit(engine: Engine, *sequences: Generation) -> None:
    for sequence in sequences:
        engine.submit(sequence)


def num_computed(program: CountingProgram) -> int:
    return sum(len(batch.tokens) for batch in program.batches)


def test_several_answers_to_one_prompt_compute_it_once() -> None:
    engine, program = make(parallel=4)
    sequences = [request(PROMPT) for _ in range(4)]
    submit(engine, *sequences)
    reports = [finish(engine, sequence) for sequence in sequences]
    assert [report.cached_tokens for report in reports] == [0, 99, 99, 99]
    assert all(sequence.tokens == [*PROMPT, 200, 201, 202] for sequence in sequences)
    assert num_computed(program) == 99 + 4 * 3
    assert [len(batch.tokens) for batch in program.batches[-3:]] == [4, 4, 4], "all go on together"


def test_more_answers_than_slots_take_it_over_too() -> None:
    engine, _ = make(parallel=2)
    sequences = [request(PROMPT) for _ in range(5)]
    submit(engine, *sequences)
    assert [finish(engine, sequence).cached_tokens for sequence in sequences] == [0, 99, 99, 99, 99]


def test_requests_with_one_system_prompt_compute_it_once() -> None:
    engine, program = make(parallel=3)
    sequences = [request([*PROMPT, *range(first, first + 20)], 1) for first in (300, 400, 500)]
    submit(engine, *sequences)
    assert [finish(engine, sequence).cached_tokens for sequence in sequences] == [0, 100, 100]
    assert num_computed(program) == 100 + 3 * 20


def test_who_comes_while_it_is_computed_waits_for_the_rest() -> None:
    engine, program = make(parallel=2)
    first, second = request(PROMPT), request(PROMPT)
    engine.submit(first)
    for _ in range(3):
        step(engine)
    engine.submit(second)
    assert finish(engine, second).cached_tokens == 99
    assert num_computed(program) <= 99 + 2 * 3


@pytest.mark.parametrize("length", [63, 64, 65])
def test_short_beginnings_are_not_waited_for(length: int) -> None:
    engine, _ = make(parallel=2)
    sequences = [request([*range(100, 100 + length), last], 1) for last in (7, 8)]
    submit(engine, *sequences)
    reports = [finish(engine, sequence) for sequence in sequences]
    assert reports[1].cached_tokens == (length if length >= 64 else 0)


def test_others_neither_wait_nor_get_ahead() -> None:
    engine, program = make(parallel=3)
    first, second, third, last = request(PROMPT), request(PROMPT), request([5, 6]), request([7, 8])
    submit(engine, first, second, third, last)
    assert finish(engine, third).reason == "length"
    assert len(program.batches) < 100 // 8, "it was computed beside the long prompt"
    assert finish(engine, second).cached_tokens == 99
    assert finish(engine, last).reason == "length"


def test_a_slot_stays_free_for_who_waits() -> None:
    engine, _ = make(parallel=2)
    first, second, other = request(PROMPT), request(PROMPT, 3), request(list(range(300, 310)), 50)
    submit(engine, first, second, other)
    finish(engine, second)
    assert len(other.tokens) < 20, "it came later, and began later"
    finish(engine, other)


def test_an_answer_whose_leader_is_cancelled_goes_on_itself() -> None:
    engine, program = make(parallel=3)
    sequences = [request(PROMPT) for _ in range(3)]
    submit(engine, *sequences)
    step(engine)
    sequences[0].cancel()
    held = num_computed(program)
    assert finish(engine, sequences[1]).cached_tokens == held
    assert finish(engine, sequences[2]).cached_tokens == 99
    assert num_computed(program) <= 99 + 2 * 3


def test_one_that_waits_can_be_cancelled() -> None:
    engine, _ = make(parallel=2)
    sequences = [request(PROMPT) for _ in range(3)]
    submit(engine, *sequences)
    step(engine)
    sequences[1].cancel()
    assert finish(engine, sequences[2]).cached_tokens == 99
    assert finish(engine, sequences[0]).reason == "length"


def test_after_a_failed_batch_the_others_compute_it() -> None:
    engine, program = make(parallel=3)
    sequences = [request(PROMPT) for _ in range(3)]
    submit(engine, *sequences)
    step(engine)

    def fail() -> None:
        program.fail = lambda: None
        raise MemoryError("on purpose")

    program.fail = fail
    engine.wait(sequences[0])
    assert isinstance(sequences[0].events.popleft(), ComputationError)
    assert [finish(engine, sequence).cached_tokens for sequence in sequences[1:]] == [0, 99]


def test_after_an_interrupt_all_of_them_go_on() -> None:
    engine, program = make(parallel=3)
    sequences = [request(PROMPT) for _ in range(3)]
    submit(engine, *sequences)
    for _ in range(3):
        step(engine)

    def interrupt() -> None:
        program.fail = lambda: None
        raise KeyboardInterrupt

    program.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.wait(sequences[0])
    assert [finish(engine, sequence).reason for sequence in sequences] == ["length"] * 3


def test_nothing_is_shared_across_salts_or_without_the_prefix_cache() -> None:
    engine, _ = make(parallel=2)
    sequences = [request(PROMPT, cache_salt=salt) for salt in ("one", "other")]
    submit(engine, *sequences)
    assert [finish(engine, sequence).cached_tokens for sequence in sequences] == [0, 0]
    engine, _ = make(parallel=2, prompt_cache=False)
    sequences = [request(PROMPT) for _ in range(2)]
    submit(engine, *sequences)
    assert [finish(engine, sequence).cached_tokens for sequence in sequences] == [0, 0]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_kind_of_cache_shares_it_without_changing_an_answer(model: Model, tmp_path: Path) -> None:
    prompt = np.random.default_rng(1).integers(5, 60, 90).tolist()
    options: Any = {"num_predict": 6, "temperature": 1.0, "logprobs": True, "ignore_eos": True}
    with chaski.load(model.path(tmp_path), context=128, num_batch=32, parallel=3, threads=1) as loaded:
        found = loaded.generate_many([prompt], n=3, seed=3, **options)
    with chaski.load(model.path(tmp_path), context=128, prompt_cache=False, threads=1) as loaded:
        alone = [loaded.generate(prompt, seed=seed, **options) for seed in (3, 4, 5)]
    assert [(each.token_ids, each.logprobs) for each in found] == [
        (each.token_ids, each.logprobs) for each in alone
    ]
    # Recurrent states exist at the ends of chunks of 64; later rows are not shared.
    shared = 64 if "heads" in model.name else 89
    assert [each.cached_tokens for each in found] == [0, shared, shared]
