"""Simulated prompts and answers on different replicas: the times of one session, and of many."""

from __future__ import annotations

import pytest

from benchmarks.simulated.phases import Engine, Link, simulate_phases
from benchmarks.simulated.replicas import Conversations

ENGINE = Engine(prefill=300.0, one=0.02, many=0.04)
ONE = Conversations(1, 1.0, turns=1)
MANY = Conversations(150, 0.3)


def test_one_question_takes_its_prompt_and_its_tokens() -> None:
    _, (turn,) = next(ONE.sessions())
    found = simulate_phases(ONE, ENGINE, 1)
    assert found.first_token == pytest.approx(turn.prompt_tokens / 300)
    assert found.gap == pytest.approx(0.02)
    assert found.moved_bytes == 0


def test_apart_the_second_token_waits_for_the_blocks() -> None:
    _, (turn,) = next(ONE.sessions())
    link = Link(latency=0.5, bandwidth=1e8)
    found = simulate_phases(ONE, ENGINE, 2, 1, link)
    assert found.first_token == pytest.approx(turn.prompt_tokens / 300)
    assert found.moved_bytes == turn.prompt_tokens * ENGINE.cell_bytes
    moving = 0.5 + found.moved_bytes / 1e8
    assert found.gap == pytest.approx(0.02 + moving / (turn.answer_tokens - 1))


def test_a_step_with_a_prompt_takes_longer_than_one_without() -> None:
    assert ENGINE.seconds(1, 0) == pytest.approx(0.02)
    assert ENGINE.seconds(8, 0) == pytest.approx(0.04)
    assert ENGINE.seconds(3, 297) == pytest.approx(1.0)


def test_of_later_questions_only_what_is_new_is_computed_and_moved() -> None:
    trace = Conversations(1, 1.0, turns=6, think=1.0)
    _, turns = next(trace.sessions())
    assert len(turns) > 1
    found = simulate_phases(trace, ENGINE, 2, 1)
    sent = turns[-1].prompt_tokens - sum(turn.answer_tokens for turn in turns[:-1])
    assert found.moved_bytes * len(turns) == sent * ENGINE.cell_bytes
    together = simulate_phases(trace, ENGINE, 1)
    computed = turns[-1].prompt_tokens - sum(turn.answer_tokens for turn in turns[:-1])
    assert together.first_token * len(turns) == pytest.approx(computed / 300)


def test_apart_gaps_are_short_and_first_tokens_late() -> None:
    together, apart = simulate_phases(MANY, ENGINE, 4), simulate_phases(MANY, ENGINE, 4, 2)
    assert apart.gap_p99 < together.gap_p99 / 4
    assert apart.first_token > together.first_token
    slow = simulate_phases(MANY, ENGINE, 4, 2, Link(bandwidth=2e6))
    assert slow.gap > apart.gap
