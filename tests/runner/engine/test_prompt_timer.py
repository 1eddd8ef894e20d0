"""The time of prompts is measured, also if batches overlap."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaski.runner.engine import prompt_timer
from chaski.runner.engine.prompt_timer import PromptTimer

Measured = list[tuple[float, float]]


@pytest.fixture
def measured() -> Measured:
    return []


@pytest.fixture
def timer(measured: Measured) -> PromptTimer:
    return PromptTimer(lambda count, seconds: measured.append((count, seconds)))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda seconds: monkeypatch.setattr(prompt_timer, "perf_counter", lambda: seconds)


def test_batches_of_prompts_are_timed_and_small_ones_are_not(
    timer: PromptTimer, measured: Measured, at: Callable[[float], None]
) -> None:
    at(1.0)
    timer.launch(100)
    timer.pause(0.5)
    at(3.0)
    timer.end()
    timer.launch(1)
    at(4.0)
    timer.end()
    assert measured == [(100, 1.5)]


def test_a_batch_that_was_launched_ahead_counts_from_the_end_of_the_last(
    timer: PromptTimer, measured: Measured, at: Callable[[float], None]
) -> None:
    at(1.0)
    timer.launch(100)
    at(1.5)
    timer.launch(200)
    at(2.0)
    timer.end(100)
    at(5.0)
    timer.end()
    assert measured == [(100, 1.0), (200, 3.0)]


def test_what_is_dropped_is_not_measured(
    timer: PromptTimer, measured: Measured, at: Callable[[float], None]
) -> None:
    at(1.0)
    timer.launch(100)
    timer.drop()
    at(2.0)
    timer.launch(100)
    at(2.5)
    timer.end()
    assert measured == [(100, 0.5)]
