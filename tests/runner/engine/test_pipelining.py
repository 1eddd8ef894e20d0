"""Batches that are prepared ahead, proposals, and groups of tokens that stay together."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from chaski.chat.events import Done
from chaski.errors import OptionError
from chaski.kvcache.batch import Batch
from tests.runner.engine.counting_program import (
    finish,
    make,
    request,
    run,
    run_at_random,
    step,
)


def test_a_batch_is_prepared_while_the_one_before_is_computed() -> None:
    engine, program = make()
    run(engine, request([5, 6], 3))
    assert program.calls == ["prepare", "launch", *["prepare", "outputs", "launch"] * 2, "outputs"]


def test_batches_of_a_prompt_follow_each_other_where_there_are_several_stages() -> None:
    engine, program = make(max_tokens=256, stages=3)
    prompt = [number % 300 for number in range(400)]
    run(engine, request(prompt, 2))
    assert [len(batch.tokens) for batch in program.batches] == [64] * 6 + [16, 1]
    assert program.calls == [
        *["prepare", "launch"] * 4,
        *["prepare", "wait 3", "launch"] * 3,
        *["wait 3", "wait 2", "wait 1", "prepare", "outputs", "launch", "outputs"],
    ]


def test_a_stage_waits_for_whoever_came() -> None:
    engine, program = make(parallel=2, max_tokens=256, stages=2)
    long, short = request(list(range(300)), 1), request([10, 11], 1)
    engine.submit(long)
    step(engine)
    engine.submit(short)
    step(engine)
    step(engine)
    assert [batch.sequences.tolist() for batch in program.batches[2:]] == [[1] * 2 + [0] * 62]
    finish(engine, long)
    assert short.events


def test_sequences_that_decode_take_turns_where_there_are_several_stages() -> None:
    engine, program = make(parallel=9, max_tokens=64, stages=2)
    requests = [request([100 * index], 6) for index in range(9)]
    for sequence in requests:
        engine.submit(sequence)
    for index, sequence in enumerate(requests):
        finish(engine, sequence)
        assert sequence.tokens == [100 * index + step for step in range(7)]
    turns = [set(batch.sequences.tolist()) for batch in program.batches]
    assert [len(turn) for turn in turns[:12]] == [5, 4] * 6
    assert all(not one & other for one, other in pairwise(turns[:12]))
    assert program.most_at_once == 2


def test_sequences_with_proposals_take_turns() -> None:
    engine, program = make(parallel=8, max_tokens=64, stages=2)
    pattern = [*range(10, 20), 10, 11, 12]
    requests = [request(pattern, 6, context=100, max_proposed=3 * (index % 2)) for index in range(8)]
    for sequence in requests:
        engine.submit(sequence)
    for sequence in requests:
        finish(engine, sequence)
        assert sequence.tokens == [*pattern, *range(13, 19)]
    turns = [
        set(batch.sequences.tolist()) for batch in program.batches if len(set(batch.sequences.tolist())) == 4
    ]
    assert len(turns) > 4
    assert program.most_at_once == 2


def test_a_few_sequences_that_decode_stay_together() -> None:
    engine, program = make(parallel=7, max_tokens=64, stages=2)
    requests = [request([100 * index], 3) for index in range(7)]
    for sequence in requests:
        engine.submit(sequence)
    for sequence in requests:
        finish(engine, sequence)
    assert [len(batch.tokens) for batch in program.batches] == [7, 7, 7]


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_random_requests_in_turns_are_told_what_they_are_alone(stages: int, seed: int) -> None:
    random = Random(seed)
    engine, program = make(parallel=12, max_tokens=128, stages=stages)
    waiting = [
        request(
            list(range(start, start + random.choice([1, 2, 30, 200]))),
            random.choice([0, 1, 5, 40]),
            context=400,
            max_proposed=random.choice([0, 4]),
        )
        for start in random.sample(range(400), 40)
    ]
    run_at_random(engine, waiting, random, 3)
    assert 1 < program.most_at_once <= stages + 1


def test_an_end_that_could_not_be_foreseen_takes_the_next_batch_back() -> None:
    engine, program = make(parallel=2)
    ends, goes_on = request([5], 50, end_ids=frozenset({7})), request([100], 4)
    engine.submit(ends)
    engine.submit(goes_on)
    finish(engine, ends)
    assert program.calls.count("undo") == 1
    assert ends.tokens == [5, 6, 7]
    finish(engine, goes_on)
    assert [len(batch.tokens) for batch in program.batches] == [2, 2, 1, 1]
    assert program.stored == [[5, 6], [100, 101, 102, 103]]


def test_who_comes_while_a_batch_is_computed_is_in_the_next_one() -> None:
    engine, program = make(parallel=2)
    long, short = request(list(range(100, 160)), 1), request([10, 11], 1)
    engine.submit(long)
    step(engine)
    engine.submit(short)
    step(engine)
    # The second batch was being computed when the request came.
    assert [batch.sequences.tolist() for batch in program.batches] == [[0] * 8, [0] * 8, [1] * 2 + [0] * 6]
    step(engine)
    assert short.events


def test_the_token_that_was_computed_behind_a_stop_text_is_dropped() -> None:
    class Digits:
        def feed(self, token_id: int) -> str:
            return f"{token_id} "

        def flush(self) -> str:
            return ""

    engine, program = make()
    sequence = request([5], 50, decoder=Digits(), stop=("8",))
    engine.submit(sequence)
    done: object = None
    while not isinstance(done, Done):
        engine.wait(sequence)
        done = sequence.events.popleft()
    assert (done.stop_string, done.generated_tokens) == ("8", 3)
    # The next batch is already in flight; the next request reuses its cells.
    assert program.stored == [[5, 6, 7, 8]]
    assert run(engine, request([5, 6, 7, 8, 40], 1)).cached_tokens == 4


def test_proposals_are_computed_with_the_token_before_them() -> None:
    engine, program = make()
    # The proposals 13 and 14 are accepted; none of 30, 31, 32 is; then no proposal is possible.
    prompt = [10, 11, 12, 13, 14, 15, 30, 31, 32, 10, 11, 12]
    sequence = request(prompt, 8, context=100, max_proposed=3)
    run(engine, sequence)
    assert sequence.tokens == [*prompt, *range(13, 21)]
    assert [batch.tokens.tolist() for batch in program.batches[2:]] == [
        [13, 14, 15, 30],
        [16],
        [17],
        [18],
        [19],
    ]
    assert program.stored == [sequence.tokens[:-1]]


def test_proposals_leave_room_for_everybody_who_decodes() -> None:
    engine, _ = make(parallel=3)
    pattern = [*range(10, 20), 10, 11, 12]
    speculating = [request(pattern, 6, context=100, max_proposed=8) for _ in range(2)]
    other = request([500], 9)
    for sequence in (*speculating, other):
        engine.submit(sequence)
    finish(engine, other)
    for sequence in speculating:
        finish(engine, sequence)
        assert sequence.tokens == [*pattern, *range(13, 19)]
    assert other.tokens == list(range(500, 510))


def test_a_group_is_never_cut() -> None:
    engine, program = make(parallel=2)
    group = range(5, 11)
    grouped = request(list(range(100, 112)), 1, groups=(group,))
    other = request([10], 6)
    engine.submit(other)
    engine.submit(grouped)
    finish(engine, grouped)
    whole = [batch for batch in program.batches if set(group) & set(_positions(batch, 1))]
    assert len(whole) == 1
    assert set(group) <= set(_positions(whole[0], 1))
    assert whole[0].ends is not None
    ends = whole[0].ends[whole[0].sequences == 1].tolist()
    expected = [group.stop if position in group else position + 1 for position in _positions(whole[0], 1)]
    assert ends == expected
    finish(engine, other)
    assert other.tokens == [10, 11, 12, 13, 14, 15, 16]


def _positions(batch: Batch, sequence: int) -> list[int]:
    return [int(position) for position in batch.positions[batch.sequences == sequence]]


def test_a_group_at_the_end_of_a_prompt_is_computed_again_as_a_whole() -> None:
    engine, program = make()
    prompt, groups = [1, 2, 3, 4, 5], (range(2, 5),)
    run(engine, request(prompt, 0, groups=groups))
    program.batches.clear()
    assert run(engine, request(prompt, 1, groups=groups)).cached_tokens == 2
    assert program.batches[0].tokens.tolist() == [3, 4, 5]


def test_a_group_that_is_larger_than_a_batch_is_refused() -> None:
    engine, _ = make()
    with pytest.raises(OptionError, match="9 tokens must be computed at once, but num_batch is 8"):
        engine.submit(request(list(range(20)), groups=(range(3, 12),)))
