"""The engine at a full context: moved keys, recomputed keys, and sequences that may use them."""

from __future__ import annotations

import pytest

from chaski.runner.generation.request import Shift
from tests.runner.engine.counting_program import (
    finish,
    make,
    request,
    run,
    step,
)


@pytest.mark.parametrize(
    ("context", "num_keep", "count"),
    [(2048, 5, 1008), (2048, 2047, 1), (2048, 0, 1024), (10, 2, 4), (40, 7, 16)],
)
def test_how_much_a_full_context_drops(context: int, num_keep: int, count: int) -> None:
    assert Shift(context, num_keep).dropped() == range(num_keep, num_keep + count)


@pytest.mark.parametrize(("can_move", "computed"), [(True, [1]), (False, [5])])
def test_a_full_context_drops_half_of_what_it_need_not_keep(can_move: bool, computed: list[int]) -> None:
    engine, program = make()
    program.can_move = can_move
    sequence = request([50, 60, 1, 2, 3, 4, 5, 6], 8, shift=Shift(10, 2))
    done = run(engine, sequence)
    # Full with 50 60 1 2 3 4 5 6 7 8, it drops 1 2 3 4; full again with … 8 9 10 11 12, it drops 5 6 7 8.
    assert sequence.tokens == [50, 60, 9, 10, 11, 12, 13, 14]
    assert program.stored == [sequence.tokens[:-1]]
    assert max(int(batch.positions.max()) for batch in program.batches) == 9
    assert [len(batch.tokens) for batch in program.batches[3:4]] == computed
    assert (done.reason, done.generated_tokens, done.shifted_tokens) == ("length", 8, 8)


def test_moved_keys_are_not_taken_over_by_other_prompts() -> None:
    engine, program = make(parallel=2)
    run(engine, request([50, 60, 1, 2, 3, 4, 5, 6], 4, shift=Shift(10, 2)))
    assert program.stored[0][:4] == [50, 60, 5, 6]
    assert run(engine, request([50, 60, 5, 6, 7, 8, 40])).cached_tokens == 2
    # Recomputed keys may be shared.
    assert run(engine, request([50, 60, 5, 6, 7, 8, 41])).cached_tokens == 6


def test_what_others_hold_is_computed_again_before_it_moves() -> None:
    engine, program = make()
    sequence = request([50, 60, 1, 2, 3, 4, 5, 6], 4, shift=Shift(10, 2))
    program.shared_from = 7
    run(engine, sequence)
    assert sequence.tokens == [50, 60, 5, 6, 7, 8, 9, 10]
    assert program.stored == [sequence.tokens[:-1]]
    # From the first shared cell to the end of the context, and no further.
    again = next(batch for batch in program.batches[3:] if len(batch.tokens) > 1)
    assert (again.positions.tolist(), again.tokens.tolist()) == ([7, 8, 9], [6, 7, 8])


def test_moved_keys_are_known_by_the_lowest_position_of_all_shifts() -> None:
    """At first the kept part ends within a group; the group and later tokens are dropped."""
    engine, program = make(parallel=2)
    prompt = [50, 51, 52, 53, *range(100, 108), 1, 2]
    sequence = request(prompt, 14, shift=Shift(16, 6), groups=(range(4, 12),))
    engine.submit(sequence)
    step(engine)
    slot = sequence.slot
    while slot.shifted_at is None:
        step(engine)
    assert (slot.shifted_at, sequence.tokens[:6]) == (4, [50, 51, 52, 53, 1, 2])
    finish(engine, sequence)
    assert sequence.tokens[:8] == [50, 51, 52, 53, 1, 2, 8, 9]
    assert slot.shifted_at == 4
    assert run(engine, request([50, 51, 52, 53, 1, 2, 40], 1)).cached_tokens == 4
    assert program.calls.count("launch") > 10


@pytest.mark.parametrize("can_go_back", [True, False])
def test_a_context_that_is_dropped_to_its_end(can_go_back: bool) -> None:
    engine, program = make()
    program.can_go_back = can_go_back
    sequence = request(list(range(100, 110)), 5, shift=Shift(10, 9))
    assert run(engine, sequence).shifted_tokens == 4
    assert sequence.tokens == [*range(100, 109), 113, 114][: len(sequence.tokens)]
    assert program.stored == [sequence.tokens[:-1]]


def test_a_cache_that_cannot_go_back_starts_again() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7]))
    program.can_go_back = False
    sequence = request([5, 6, 9])
    assert run(engine, sequence).cached_tokens == 0
    assert sequence.tokens == [5, 6, 9, 10, 11, 12]
    longer = request([*sequence.tokens[:-1], 20])
    assert run(engine, longer).cached_tokens == 5
