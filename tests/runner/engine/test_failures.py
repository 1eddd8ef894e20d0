"""Cancelled sequences, interrupts and errors: the sequences that end, and those that continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chaski.errors import CacheFullError, ComputationError
from chaski.kvcache.batch import Batch
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.request import GenerationRequest, Shift
from chaski.sample import SamplingOptions
from tests.cache_checks import assert_whole
from tests.runner.engine.counting_program import (
    finish,
    make,
    request,
    run,
    step,
)


def test_a_cancelled_sequence_frees_its_slot() -> None:
    engine, _ = make()
    forgotten = request([5], 500)
    engine.submit(forgotten)
    step(engine)
    forgotten.cancel()
    run(engine, request([50]))
    assert len(forgotten.tokens) == 2
    assert not forgotten.events


def test_a_sequence_cancelled_before_it_ran_is_skipped() -> None:
    engine, program = make()
    forgotten = request([5])
    engine.submit(forgotten)
    forgotten.cancel()
    run(engine, request([50]))
    assert 5 not in np.concatenate([batch.tokens for batch in program.batches])


def failing(error: type[BaseException]) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error("on purpose")

    return fail


def test_a_batch_that_was_interrupted_has_not_happened() -> None:
    engine, program = make()
    sequence = request([5, 6])
    engine.submit(sequence)
    program.fail = failing(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.wait(sequence)
    assert program.stored == [[]]
    program.fail = lambda: None
    finish(engine, sequence)
    assert sequence.tokens == [5, 6, 7, 8, 9]


def test_a_batch_that_fails_ends_all_that_run_and_the_next_may_work() -> None:
    engine, program = make(parallel=2)
    sequences = [request([5, 6], 50), request([7], 50), request([8])]
    for sequence in sequences:
        engine.submit(sequence)
    for _ in range(3):
        step(engine)
    program.fail = failing(RuntimeError)
    for sequence in sequences[:2]:
        engine.wait(sequence)
        error = sequence.events.popleft()
        assert isinstance(error, ComputationError)
        assert "RuntimeError: on purpose" in str(error)
        assert not sequence.is_running
    program.fail = lambda: None
    finish(engine, sequences[2])
    assert sequences[2].tokens == [8, 9, 10, 11]
    assert run(engine, request([5, 6])).reason == "length"


def test_an_error_in_the_middle_of_choosing_ends_the_one_that_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _ = make(parallel=2)
    sequences = [request([10]), request([20])]
    for sequence in sequences:
        engine.submit(sequence)
    with monkeypatch.context() as patched:
        patched.setattr(Generation, "take", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.wait(sequences[0])
    assert isinstance(sequences[0].events.popleft(), ComputationError)
    finish(engine, sequences[1])
    assert sequences[1].tokens == [20, 21, 22, 23]
    assert_whole(engine)


class Spoilt(Generation):
    """A generation with a method that fails at a number of tokens."""

    method: str
    at: int

    def __getattribute__(self, name: str) -> Any:
        cls = type(self)
        value = super().__getattribute__(name)
        if name != cls.method or len(super().__getattribute__("tokens")) < cls.at:
            return value
        if callable(value):
            return failing(RuntimeError)
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("at", [4, 5, 6, 8])
@pytest.mark.parametrize(
    "method", ["take", "write", "propose", "start", "outputs", "share", "num_pending", "full_context", "drop"]
)
def test_what_goes_wrong_with_one_sequence_ends_no_other(method: str, at: int) -> None:
    engine, _ = make(parallel=3)
    others = [request([10, 11, 12, 13], 12, shift=Shift(9, 2)) for _ in range(2)]
    kind = type("Kind", (Spoilt,), {"method": method, "at": at, "__slots__": ()})
    greedy = SamplingOptions(temperature=0)
    spoilt = kind(GenerationRequest(prompt=[10, 11, 30, 31], limit=20, sampling=greedy, shift=Shift(8, 2)))
    for sequence in (others[0], spoilt, others[1]):
        engine.submit(sequence)
    engine.wait(spoilt)
    event = spoilt.events.popleft()
    # It starts once, with four tokens.
    assert isinstance(event, ComputationError) == (method != "start" or at == 4)
    for sequence in others:
        assert finish(engine, sequence).generated_tokens == 12
        assert sequence.tokens[-2:] == [24, 25]
    assert run(engine, request([10, 11, 30, 31])).reason == "length"
    assert_whole(engine)


def test_a_sequence_that_its_cache_refuses_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, program = make(parallel=2)
    others = [request([10], 12), request([20], 12)]
    prepare = program.prepare

    def refusing(batch: Batch) -> dict[str, Any]:
        if ((batch.sequences == 1) & (batch.positions >= 5)).any():
            raise CacheFullError("sequence 1 holds 5 tokens and 1 more do not fit")
        return prepare(batch)

    monkeypatch.setattr(program, "prepare", refusing)
    for sequence in others:
        engine.submit(sequence)
    assert finish(engine, others[0]).generated_tokens == 12
    engine.wait(others[1])
    assert isinstance(others[1].events.popleft(), CacheFullError)
    assert_whole(engine)
