"""The choice of replicas, and the result of many choices."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.simulated.replicas import Conversations, Machine, simulate
from chaski.cluster.block_index import BlockIndex
from chaski.cluster.router import Router
from chaski.cluster.routing import Candidate, Load, Speed, choose

SPEED = Speed(prefill=100.0, answer_seconds=5.0)


def test_the_replica_that_holds_the_prompt_answers_unless_it_has_too_much_to_do() -> None:
    holder = Candidate(0, 900, Load(4), SPEED)
    idle = Candidate(1, 0, Load(4), SPEED)
    assert choose([holder, idle], 1000) is holder
    busy = Candidate(0, 900, Load(4, answers=3, pending=500), SPEED)
    assert choose([busy, idle], 1000) is busy
    crowded = Candidate(0, 900, Load(4, answers=12, pending=3000), SPEED)
    assert choose([crowded, idle], 1000) is idle


def test_a_faster_replica_is_preferred_and_equal_ones_take_turns() -> None:
    slow, fast = Candidate(0, 0, Load(4), SPEED), Candidate(1, 0, Load(4), Speed(300.0, 5.0))
    assert choose([slow, fast], 1000) is fast
    used, unused = Candidate(0, 0, Load(4, answers=1), SPEED), Candidate(1, 0, Load(4), SPEED)
    assert choose([used, unused], 100) is unused
    with pytest.raises(ValueError, match="empty"):
        choose([], 100)


def test_the_index_knows_the_longest_beginning_that_each_replica_holds() -> None:
    index = BlockIndex()
    index.assume(0, [1, 2, 3], 0.0)
    index.assume(1, [1, 2, 8], 0.0)
    index.assume(2, [1], 0.0)
    assert index.holders([1, 2, 3, 4]) == {0: 3, 1: 2, 2: 1}
    assert index.holders([5]) == {}
    index.forget(0)
    assert index.holders([1, 2, 3, 4]) == {1: 2, 2: 1}
    assert len(index) == 4


def test_what_replicas_report_takes_the_place_of_what_was_assumed_long_ago() -> None:
    index = BlockIndex()
    index.assume(0, [1, 2], 0.0)
    index.report(0, [7], 30.0)
    assert index.holders([1, 2]) == {0: 2}
    assert index.holders([7]) == {0: 1}
    index.report(0, [1], 100.0)
    assert index.holders([1, 2]) == {0: 1}
    assert index.holders([7]) == {}


def test_the_index_is_bounded() -> None:
    index = BlockIndex(max_blocks=100)
    for number in range(50):
        index.assume(0, range(10 * number, 10 * number + 10), float(number))
    assert len(index) == 100
    assert index.holders([490]) == {0: 1}
    assert index.holders([0]) == {}
    index.report(0, range(10_000), 50.0)
    assert len(index) == 100


def test_loads_follow_requests_and_replicas_that_leave_are_forgotten() -> None:
    router = Router(block_tokens=10, random=Random(1))
    for number in range(3):
        router.join(number, 4, SPEED)
    chosen = router.choose([1, 2, 3], 35)
    assert router.given(chosen, [1, 2, 3], 35, 0.0) == 35
    assert router.load(chosen.replica) == Load(4, 1, 35)
    router.computed(chosen.replica, 35)
    again = router.choose([1, 2, 3, 4], 45)
    assert (again.replica, again.cached) == (chosen.replica, 30)
    assert router.choose([1, 2], 25, without=[chosen.replica]).replica != chosen.replica
    router.ended(chosen.replica)
    assert router.load(chosen.replica) == Load(4)
    router.leave(chosen.replica)
    assert chosen.replica not in router.replicas
    assert router.choose([1, 2], 25).cached == 0
    router.computed(chosen.replica, 25)  # a late report about a replica that has left
    router.ended(chosen.replica)
    router.measured(chosen.replica, 10.0, 1.0)


def test_what_was_measured_counts() -> None:
    router = Router(block_tokens=10)
    router.join(0, 4, SPEED)
    router.join(1, 4, SPEED)
    for _ in range(50):
        router.measured(1, 400.0, 1.0)
        router.measured(0, None, 1.0)
    assert router.choose([], 1000).replica == 1


def test_conversations_stay_where_their_beginning_is() -> None:
    trace = Conversations(400, rate=0.2)
    random, prefix = (simulate(trace, Machine(), 4, policy) for policy in ("random", "by prefix"))
    assert prefix.cached_share > random.cached_share + 0.1
    assert prefix.first_token < random.first_token / 3
    assert prefix.hot_spot < 1.3


def test_overloaded_replicas_do_not_give_their_prompts_away() -> None:
    trace = Conversations(600, rate=0.6)
    random, prefix = (simulate(trace, Machine(), 4, policy) for policy in ("random", "by prefix"))
    assert prefix.answers_per_second > 1.8 * random.answers_per_second


def test_many_replicas_share_the_work() -> None:
    found = simulate(Conversations(4000, rate=12, num_systems=50, turns=3), Machine(), 100, "by prefix")
    assert found.hot_spot < 1.5
    assert found.cached_share > 0.6
