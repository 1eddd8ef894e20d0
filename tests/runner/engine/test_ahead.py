"""Batches that are launched before the previous one has ended, with tokens that only the device knows."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from chaski.sample import SamplingOptions
from chaski.sample.lark import AnswerPrefix
from chaski.sample.rules import TokenRules
from chaski.sample.thought_budget import ThoughtBudget
from tests.runner.engine.counting_program import finish, make, request, run, run_at_random, step


def test_the_next_batch_is_launched_before_the_host_reads_the_last() -> None:
    engine, program = make(ahead=True)
    sequence = request([5, 6], 4)
    run(engine, sequence)
    ahead = ["prepare", "ahead", "launch", "wait 1"]
    assert program.calls == ["prepare", "launch", *ahead * 3, "outputs"]
    assert sequence.tokens == [5, 6, 7, 8, 9, 10]
    assert program.stored == [[5, 6, 7, 8, 9]]


def test_a_prompt_is_computed_beside_sequences_that_decode() -> None:
    engine, program = make(parallel=2, ahead=True)
    decoding, prompt = request([5], 9), request(list(range(100, 120)), 3)
    engine.submit(decoding)
    step(engine)
    engine.submit(prompt)
    for each in (decoding, prompt):
        finish(engine, each)
    assert decoding.tokens == list(range(5, 15))
    assert prompt.tokens == list(range(100, 123))
    assert program.most_at_once == 2
    assert [len(batch.tokens) for batch in program.batches[2:5]] == [8, 8, 7]


def test_a_token_behind_the_end_is_computed_in_vain_and_kept() -> None:
    engine, program = make(parallel=2, ahead=True)
    ends, goes_on = request([5], 50, end_ids=frozenset({7})), request([100], 6)
    engine.submit(ends)
    engine.submit(goes_on)
    finish(engine, ends)
    assert ends.tokens == [5, 6, 7]
    finish(engine, goes_on)
    assert "undo" not in program.calls
    assert [len(batch.tokens) for batch in program.batches] == [2, 2, 2, 1, 1, 1]
    assert program.stored[0] == [5, 6, 7]
    assert run(engine, request([5, 6, 7, 40], 1)).cached_tokens == 3


@pytest.mark.parametrize("can_go_back", [True, False])
def test_who_left_while_a_token_was_computed_leaves_what_is_known(can_go_back: bool) -> None:
    engine, program = make(ahead=True)
    program.can_go_back = can_go_back
    sequence = request([5, 6], 50)
    engine.submit(sequence)
    step(engine)
    launch = program.launch

    def leaving(*arguments: Any) -> Any:
        sequence.cancel()
        return launch(*arguments)

    with patch.object(program, "launch", leaving):
        step(engine)
    known = [5, 6, 7] if can_go_back else []
    assert program.stored == [known]
    assert run(engine, request([5, 6, 7, 40], 1)).cached_tokens == len(known)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0, "logprobs": True},
        {"temperature": 0, "frequency_penalty": 0.5},
        {"temperature": 0, "logit_bias": {3: 1.0}},
    ],
)
def test_other_choices_than_the_largest_logit_wait_for_the_host(options: dict[str, Any]) -> None:
    engine, program = make(parallel=2, ahead=True)
    sequence, greedy = request([5], 5, SamplingOptions(**options)), request([100], 5)
    for each in (sequence, greedy):
        engine.submit(each)
    finish(engine, sequence)
    assert "ahead" not in program.calls


def test_what_the_text_itself_proposes_is_computed_together() -> None:
    engine, program = make(ahead=True)
    pattern = [*range(10, 40), 10, 11, 12]
    sequence = request(pattern, 20, context=100, max_proposed=7)
    run(engine, sequence)
    assert sequence.tokens == [*pattern, *range(13, 33)]
    prompt = -(-len(pattern) // 8)
    assert sum(len(batch.tokens) == 4 for batch in program.batches[prompt:]) > 2
    assert program.calls.count("ahead") == 1


@pytest.mark.parametrize("can_go_back", [True, False])
def test_a_token_that_is_ruled_out_was_computed_in_vain(can_go_back: bool) -> None:
    engine, program = make(parallel=2, ahead=True)
    program.can_go_back = can_go_back
    rules = TokenRules(suppressed=frozenset({8, 9, 106}))
    sequences = [request([start], 9, rules=rules) for start in (5, 100)]
    for each in sequences:
        engine.submit(each)
    for each in sequences:
        finish(engine, each)
    assert sequences[0].tokens == [5, 6, 7, 10, 11, 12, 13, 14, 15, 16]
    assert sequences[1].tokens == [*range(100, 106), *range(107, 111)]
    assert program.stored == [sequences[0].tokens[:-1], sequences[1].tokens[:-1]]
    assert ("ahead" in program.calls) == can_go_back


def thoughts(num_tokens: int) -> ThoughtBudget:
    """Return a budget of a thought that the prompt opened, and that ends with the tokens 50 and 60."""
    prefix = AnswerPrefix(opening="<t>", closing="</t>", is_open=True)
    return ThoughtBudget(prefix, num_tokens, [[50, 60]], {}, lambda token: b"x")


@pytest.mark.parametrize("can_go_back", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_a_forced_token_is_not_launched_ahead(can_go_back: bool, num_tokens: int) -> None:
    """The host knows it before the device does, so nothing is computed in vain."""
    engine, program = make(parallel=2, ahead=True)
    program.can_go_back = can_go_back
    thinking, other = request([5], 9, thoughts=thoughts(num_tokens)), request([100], 9)
    for each in (thinking, other):
        engine.submit(each)
    for each in (thinking, other):
        finish(engine, each)
    free = 9 - num_tokens - 2
    assert thinking.tokens == [*range(5, 6 + num_tokens), 50, *range(60, 61 + free)]
    assert other.tokens == list(range(100, 110))
    assert "ahead" in program.calls
    assert sum(len(batch.tokens) for batch in program.batches) == 2 * 9


def test_proposed_tokens_give_way_to_forced_ones() -> None:
    engine, _ = make(ahead=True)
    pattern = [*range(10, 40), 10, 11, 12]
    sequence = request(pattern, 20, context=100, max_proposed=7, thoughts=thoughts(6))
    run(engine, sequence)
    assert sequence.tokens == [*pattern, *range(13, 19), 50, *range(60, 73)]


@pytest.mark.parametrize("seed", range(12))
def test_random_requests_are_told_what_they_are_alone(seed: int) -> None:
    random = Random(seed)
    engine, program = make(parallel=random.choice([1, 3, 8]), max_tokens=random.choice([8, 64]), ahead=True)
    program.can_go_back = random.random() < 0.7
    waiting = []
    for start in random.sample(range(400), 40):
        prompt = list(range(start, start + random.choice([1, 2, 30, 200])))
        ends = frozenset({start + random.choice([205, 210, 999])})
        proposed = 0 if random.random() < 0.8 else 4
        waiting.append(
            request(prompt, random.choice([0, 1, 5, 40]), context=400, end_ids=ends, max_proposed=proposed)
        )
    run_at_random(engine, waiting, random, 2)
    slots = engine.prefix_cache.slots
    for slot, stored in zip(slots, program.stored, strict=True):
        assert slot.tokens == stored
    assert "ahead" in program.calls
