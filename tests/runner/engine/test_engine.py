"""The engine with a model of known logits: after token t comes t + 1."""

from __future__ import annotations

from chaski.runner.adapters.applied import AppliedAdapters
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.sequence import Sequence
from tests.runner.engine.counting_program import (
    finish,
    make,
    request,
    run,
)


def test_a_sequence_counts_on_to_its_limit() -> None:
    engine, _ = make()
    sequence = request([5, 6])
    done = run(engine, sequence)
    assert sequence.tokens == [5, 6, 7, 8, 9]
    assert (done.reason, done.prompt_tokens, done.cached_tokens, done.generated_tokens) == ("length", 2, 0, 3)


def test_it_ends_at_an_end_token() -> None:
    engine, _ = make()
    sequence = request([5], 50, end_ids=frozenset({8, 30}))
    assert run(engine, sequence).reason == "stop"
    assert sequence.tokens == [5, 6, 7, 8]


def test_without_anything_to_predict_only_the_prompt_is_computed() -> None:
    engine, program = make()
    sequence = request([5, 6], 0)
    assert run(engine, sequence).generated_tokens == 0
    assert program.stored == [[5, 6]]


def test_prompts_are_computed_in_chunks() -> None:
    engine, program = make()
    run(engine, request(list(range(20)), 2))
    assert [len(batch.tokens) for batch in program.batches] == [8, 8, 4, 1]
    assert [batch.outputs.tolist() for batch in program.batches] == [[], [], [3], [0]]


def test_sequences_decode_in_one_batch() -> None:
    engine, program = make(parallel=3)
    sequences = [request([start]) for start in (10, 20, 30)]
    for sequence in sequences:
        engine.submit(sequence)
    for sequence in sequences:
        finish(engine, sequence)
    assert [sequence.tokens for sequence in sequences] == [
        [10, 11, 12, 13],
        [20, 21, 22, 23],
        [30, 31, 32, 33],
    ]
    assert [len(batch.tokens) for batch in program.batches] == [3, 3, 3]


def test_a_long_prompt_does_not_stop_the_others() -> None:
    engine, program = make(parallel=2)
    short, long = request([10], 4), request(list(range(100, 120)), 1)
    engine.submit(long)
    engine.submit(short)
    finish(engine, short)
    assert [batch.sequences.tolist().count(1) for batch in program.batches] == [1, 1, 1, 1]
    assert finish(engine, long).reason == "length"


def test_sequences_wait_for_a_slot_and_then_run() -> None:
    engine, _ = make(parallel=1)
    sequences = [request([start]) for start in (10, 20, 30)]
    for sequence in sequences:
        engine.submit(sequence)
    finish(engine, sequences[2])
    assert [sequence.is_running for sequence in sequences] == [False, False, False]


def test_the_next_prompt_takes_over_what_was_computed() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7]))
    program.batches.clear()
    done = run(engine, request([5, 6, 7, 8, 40, 41], 1))
    assert done.cached_tokens == 4
    assert program.batches[0].tokens.tolist() == [40, 41]


def test_nobody_takes_over_what_was_computed_with_another_adapter() -> None:
    engine, _ = make(parallel=2)
    for key, cached in (("", 0), ("a", 0), ("a", 2), ("", 2), ("b", 0)):
        sequence = request([5, 6, 7])
        sequence.adapters = AppliedAdapters(key, ()) if key else None
        assert run(engine, sequence).cached_tokens == cached


def test_nobody_takes_over_what_was_computed_for_another_cache_salt() -> None:
    for parallel in (1, 2):
        engine, _ = make(parallel)
        run(engine, request([5, 6, 7], cache_salt="hers"))
        assert run(engine, request([5, 6, 7], cache_salt="his")).cached_tokens == 0
        # With one slot, her prefix is lost; with two slots, both keep theirs.
        assert run(engine, request([5, 6, 7], cache_salt="hers")).cached_tokens == (0, 2)[parallel - 1]
        assert run(engine, request([5, 6, 7], cache_salt="hers")).cached_tokens == 2
        assert run(engine, request([5, 6, 7])).cached_tokens == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7], 0))
    program.batches.clear()
    sequence = request([5, 6, 7])
    assert run(engine, sequence).cached_tokens == 2
    assert sequence.tokens == [5, 6, 7, 8, 9, 10]
    assert program.batches[0].tokens.tolist() == [7]


def test_a_prefix_is_shared_with_a_sequence_that_runs() -> None:
    engine, program = make(parallel=2)
    first = request([1, 2, 3, 4], 30)
    engine.submit(first)
    finish(engine, request_of_one_step(engine))
    second = request([1, 2, 3, 9], 1)
    assert run(engine, second).cached_tokens == 3
    assert program.stored[1][:4] == [1, 2, 3, 9]
    assert finish(engine, first).generated_tokens == 30


def request_of_one_step(engine: Engine) -> Sequence:
    """Return a sequence that is done after a single batch."""
    sequence = request([500], 0)
    engine.submit(sequence)
    return sequence


def test_without_the_prefix_cache_everything_is_computed() -> None:
    engine, _ = make(prompt_cache=False)
    run(engine, request([5, 6, 7]))
    assert run(engine, request([5, 6, 7])).cached_tokens == 0


def test_a_cache_that_cannot_drop_a_tail_starts_again() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7]))
    program.can_trim = False
    sequence = request([5, 6, 9])
    assert run(engine, sequence).cached_tokens == 0
    assert sequence.tokens == [5, 6, 9, 10, 11, 12]
