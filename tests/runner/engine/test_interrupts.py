"""Ctrl-C at any line of a step: no request is lost or waits forever, and all others get the same answer."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import chaski
from chaski.errors import ChaskiError, ComputationError
from chaski.runner.engine.exclusive import uninterrupted
from tests.cache_checks import assert_whole
from tests.interrupting import Lines, raise_exception, raise_signal
from tests.random_mixes import MODELS

PROMPT = list(range(5, 33))
# The first two share a beginning, and all exceed their context; the last repeats itself, so proposals are
# accepted.
REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    (PROMPT, {"seed": 1, "num_predict": 7}),
    ([*PROMPT[:20], 40, 41, 42, 43, 44, 45], {"seed": 2, "num_predict": 9}),
    ([7, 8, 9] * 9, {"seed": 3, "num_predict": 8, "temperature": 0.1}),
]
OPTIONS: dict[str, Any] = {"temperature": 1.0, "logprobs": True, "num_keep": 4}


@contextmanager
def opened(name: str, folder: Path) -> Iterator[chaski.LLM]:
    path = next(model for model in MODELS if model.name == name).path(folder)
    with chaski.load(path, context=32, parallel=2, num_batch=8, threads=1) as model:
        yield model


def alone(model: chaski.LLM) -> list[list[Any]]:
    with chaski.load(model.path, context=32, parallel=1, prompt_cache=False, threads=1) as fresh:
        return [list(fresh.stream(prompt, **OPTIONS | options)) for prompt, options in REQUESTS]


def answers(model: chaski.LLM, lines: Lines) -> list[list[Any] | BaseException]:
    """Return the answers of concurrent requests, or the errors that ended them; count lines."""
    found: list[list[Any] | BaseException] = [[] for _ in REQUESTS]
    streams: dict[int, Any] = {}
    to_begin = dict(enumerate(REQUESTS))
    with lines:
        while to_begin or streams:
            for index in [*streams, *list(to_begin)[:1]]:
                try:
                    if index in to_begin:
                        prompt, options = to_begin.pop(index)
                        streams[index] = model.stream(prompt, **OPTIONS | options)
                    event = next(streams[index], None)
                except (KeyboardInterrupt, ChaskiError) as error:
                    found[index] = error.with_traceback(None)
                    streams.pop(index, None)
                    lines.stop()
                else:
                    said = found[index]
                    assert isinstance(said, list)
                    said.append(event)
                    if event is None:
                        del streams[index], said[-1]
    return found


def said(events: list[Any]) -> Any:
    texts = [event for event in events if isinstance(event, chaski.Text)]
    logprobs = tuple(entry for text in texts for entry in text.logprobs)
    return tuple(token for text in texts for token in text.token_ids), logprobs, events[-1].reason


def check(model: chaski.LLM, expected: list[list[Any]]) -> None:
    """Check that a thread without trace and interrupts gets the right answer, and the state is valid."""
    later: list[list[Any] | BaseException] = []
    thread = threading.Thread(
        target=lambda: later.extend(answers(model, Lines(0, raise_signal))), daemon=True
    )
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "a lock was never released"
    assert [said(events) for events in later if isinstance(events, list)] == [said(one) for one in expected]
    assert_whole(model.engine)
    # The next batch dismisses ended sequences; sequences without a reader do not stay.
    assert not [sequence for sequence in model.engine._sequences.running if sequence.is_running]
    assert not [sequence for sequence in model.engine._sequences.waiting if sequence.is_running]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def sweep(name: str, folder: Path, act: Callable[[], None], step: int, times: int = 1) -> dict[str, int]:
    """Interrupt the requests at lines; return the numbers of complete, interrupted and failed answers.

    It interrupts at every `step`-th executed line of the sources, `times` times, all but once at random.
    """
    chance = random.Random(step)
    results = {"told": 0, "interrupted": 0, "failed": 0}
    left_out = "exclusive.py" if act is raise_exception else ""
    with opened(name, folder) as model:
        expected = alone(model)
        assert any(events[-1].shifted_tokens for events in expected)
        lines = Lines(0, act, left_out)
        answers(model, lines)
        assert len(lines.seen) > 400
        every = list(lines.seen.values())[::step] * times
        for at in map(chance.choice, every):
            found = answers(model, Lines(at, act, left_out))
            check(model, expected)
            for events, whole in zip(found, expected, strict=True):
                if isinstance(events, list):
                    assert said(events) == said(whole), at
                    results["told"] += 1
                else:
                    is_interrupt = isinstance(events, KeyboardInterrupt)
                    assert is_interrupt or isinstance(events, ComputationError), at
                    results["interrupted" if is_interrupt else "failed"] += 1
    return results


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_a_signal_at_a_line_ends_the_answer_that_is_waited_for_only(name: str, tmp_path: Path) -> None:
    results = sweep(name, tmp_path, raise_signal, 61)
    assert results["failed"] == 0
    assert results["told"] >= 2 * results["interrupted"] > 10


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_an_exception_at_a_line_leaves_the_engine_whole(name: str, tmp_path: Path) -> None:
    """The handler of another signal may raise; the handled sequence, and those with moved keys, fail."""
    results = sweep(name, tmp_path, raise_exception, 61)
    assert results["told"] > results["failed"]
    assert results["interrupted"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("act", [raise_signal, raise_exception])
def test_every_line(name: str, act: Callable[[], None], tmp_path: Path) -> None:
    results = sweep(name, tmp_path, act, 1, 3)
    assert act is raise_exception or results["failed"] == 0


@pytest.mark.long
def test_signals_at_any_time(tmp_path: Path) -> None:
    """Another thread sends signals continuously while answers are made."""
    told = interrupted = 0
    chance = random.Random(5)
    with opened("qwen3", tmp_path) as model:
        expected = alone(model)
        stop = threading.Event()
        may_come = threading.Event()

        def interrupt() -> None:
            while not stop.is_set():
                if may_come.wait(0.01):
                    time.sleep(chance.random() * 0.02)
                    may_come.clear()
                    os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            for _ in range(25):
                found: list[Any] = []
                try:
                    may_come.set()
                    found = answers(model, Lines(0, raise_signal))
                    while may_come.is_set():
                        time.sleep(0.001)
                    time.sleep(0.005)
                except KeyboardInterrupt:
                    interrupted += 1
                for events, whole in zip(found, expected, strict=False):
                    if isinstance(events, list):
                        assert said(events) == said(whole)
                        told += 1
                    else:
                        interrupted += isinstance(events, KeyboardInterrupt)
                check(model, expected)
        finally:
            stop.set()
            thread.join()
    assert interrupted > 5
    assert told > 5


def test_what_is_not_interrupted_is_told_when_it_has_ended() -> None:
    done: list[str] = []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("more")

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert done == ["more"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_at_any_line_of_the_deferral_itself() -> None:
    at, count = 0, 1
    while at <= count:
        at += 1
        lines = Lines(at, raise_signal)
        with suppress(KeyboardInterrupt), lines:
            uninterrupted(lambda: None)
        count = max(count, lines.count)
        test_what_is_not_interrupted_is_told_when_it_has_ended()
    assert count > 10


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: seen.append(number)])
def test_other_handlers_are_asked_and_stay(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    seen.clear()
    try:
        uninterrupted(lambda: uninterrupted(lambda: signal.raise_signal(signal.SIGINT)))
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ([] if handler is signal.SIG_IGN else [signal.SIGINT])


seen: list[int] = []


def test_a_handler_that_computes_within_a_step_is_told(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def compute(number: int, frame: FrameType | None) -> None:
        try:
            model.generate(PROMPT, num_predict=2)
        except ChaskiError as error:
            errors.append(error)

    before = signal.signal(signal.SIGUSR1, compute)
    try:
        with opened("llama", tmp_path) as model:
            expected = alone(model)
            program: Any = model.engine._program
            wait = program.wait
            program.wait = lambda most: (signal.raise_signal(signal.SIGUSR1), wait(most))  # type: ignore[func-returns-value]
            events = list(model.stream(REQUESTS[0][0], **OPTIONS | REQUESTS[0][1]))
            program.wait = wait
            assert said(events) == said(expected[0])
            check(model, expected)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert errors
    assert "is already computing with the model" in str(errors[0])
