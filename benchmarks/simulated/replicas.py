"""Simulate routing to replicas for a trace of conversations, without models.

A replica computes prompts one after the other, and answers in parallel, each of which slows the others a
little. It keeps blocks until they no longer fit, and evicts the least recently used first. The router is the
server's own; its rivals use less information.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from random import Random
from time import perf_counter
from typing import Protocol

import numpy as np
from msgspec import Struct, field

from chaski.cluster.router import Router
from chaski.cluster.routing import Speed

__all__ = ["BLOCK", "POLICIES", "Conversations", "Kept", "Machine", "Outcome", "Turn", "simulate"]

BLOCK = 256


class Machine(Struct, frozen=True):
    """The properties of all replicas.

    places         number of concurrent answers
    prefill        prompt tokens per second
    decode         tokens per second of a single answer
    beside         share by which each further answer slows all
    kept_tokens    prompt tokens whose blocks it keeps
    """

    places: int = 8
    prefill: float = 300.0
    decode: float = 40.0
    beside: float = 0.1
    kept_tokens: int = 200_000


class Turn(Struct, frozen=True):
    """A question: its earliest time, its prompt's blocks, and its answer.

    think  seconds between the previous answer and this question
    """

    session: int
    blocks: Sequence[int]
    prompt_tokens: int
    answer_tokens: int
    think: float


class Conversations(Struct, frozen=True):
    """A trace of sessions that begin with one of several system prompts and grow turn by turn.

    System prompts are as unevenly distributed as words in a text (Zipf). `rate` is sessions per second.
    """

    num_sessions: int
    rate: float
    num_systems: int = 20
    system_tokens: int = 1500
    turns: int = 5
    question_tokens: int = 300
    answer_tokens: int = 120
    think: float = 20.0
    seed: int = 1

    def sessions(self) -> Iterator[tuple[float, list[Turn]]]:
        """Yield each session with its start time."""
        random = np.random.default_rng(self.seed)
        weights = 1 / np.arange(1, self.num_systems + 1)
        weights /= weights.sum()
        now = 0.0
        names = iter(range(1 << 62))
        systems = [[next(names) for _ in range(self.system_tokens // BLOCK)] for _ in range(self.num_systems)]
        for session in range(self.num_sessions):
            now += float(random.exponential(1 / self.rate))
            blocks = list(systems[int(random.choice(self.num_systems, p=weights))])
            tokens = self.system_tokens
            turns: list[Turn] = []
            for _ in range(1 + int(random.poisson(self.turns - 1))):
                tokens += 1 + int(random.exponential(self.question_tokens))
                blocks += [next(names) for _ in range(tokens // BLOCK - len(blocks))]
                answer = 1 + int(random.exponential(self.answer_tokens))
                think = float(random.exponential(self.think)) if turns else 0.0
                turns.append(Turn(session, tuple(blocks), tokens, answer, think))
                tokens += answer
            yield now, turns


class Policy(Protocol):
    """Chooses replicas, and is notified of the progress of requests."""

    def choose(self, turn: Turn, now: float) -> int: ...

    def computed(self, replica: int, turn: Turn) -> None: ...

    def ended(self, replica: int, prefill: float | None, seconds: float) -> None: ...


class _Blind(Struct):
    """Ignores the prompt: `pick` takes the number of answers of each replica."""

    pick: Callable[[list[int]], int]
    answers: list[int]

    def choose(self, turn: Turn, now: float) -> int:
        replica = self.pick(self.answers)
        self.answers[replica] += 1
        return replica

    def computed(self, replica: int, turn: Turn) -> None:
        pass

    def ended(self, replica: int, prefill: float | None, seconds: float) -> None:
        self.answers[replica] -= 1


class _ByPrefix(Struct):
    router: Router
    tokens: dict[Turn, int] = field(default_factory=dict)

    def choose(self, turn: Turn, now: float) -> int:
        chosen = self.router.choose(turn.blocks, turn.prompt_tokens)
        self.tokens[turn] = self.router.given(chosen, turn.blocks, turn.prompt_tokens, now)
        return chosen.replica

    def computed(self, replica: int, turn: Turn) -> None:
        self.router.computed(replica, self.tokens.pop(turn))

    def ended(self, replica: int, prefill: float | None, seconds: float) -> None:
        self.router.ended(replica)
        self.router.measured(replica, prefill, seconds)


def _random(num_replicas: int, machine: Machine) -> Policy:
    random = Random(2)
    return _Blind(lambda answers: random.randrange(num_replicas), [0] * num_replicas)


def _least_loaded(num_replicas: int, machine: Machine) -> Policy:
    return _Blind(lambda answers: answers.index(min(answers)), [0] * num_replicas)


def _by_prefix(num_replicas: int, machine: Machine) -> Policy:
    router = Router(BLOCK)
    for replica in range(num_replicas):
        router.join(replica, machine.places, Speed(machine.prefill, 5.0, machine.beside))
    return _ByPrefix(router)


POLICIES: dict[str, Callable[[int, Machine], Policy]] = {
    "random": _random,
    "least loaded": _least_loaded,
    "by prefix": _by_prefix,
}


class Outcome(Struct, frozen=True):
    """The result of a trace. Times are seconds from the question to the first token.

    hot_spot          work of the busiest replica, relative to the mean
    decision_seconds  mean real time of a choice
    """

    answers_per_second: float
    first_token: float
    first_token_p99: float
    cached_share: float
    hot_spot: float
    decision_seconds: float


class _Asked(Struct):
    """A turn of a session in progress: number `index`, asked at `at`, with its first token at `first`."""

    turns: list[Turn]
    index: int
    at: float = 0.0
    replica: int = -1
    first: float = 0.0

    @property
    def turn(self) -> Turn:
        return self.turns[self.index]


class Kept:
    """The blocks of prompts that a replica keeps; it evicts the least recently used first."""

    def __init__(self, max_tokens: int) -> None:
        self._max = max_tokens // BLOCK
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, blocks: Iterable[int]) -> int:
        """Keep the blocks of a prompt; return the number of leading blocks that were cached."""
        hits, is_hit = 0, True
        for block in blocks:
            is_hit = is_hit and block in self._blocks
            hits += is_hit
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max:
            self._blocks.popitem(last=False)
        return hits


class _Replica(Struct):
    kept: Kept
    waiting: deque[_Asked] = field(default_factory=deque)
    answers: int = 0
    free_at: float = 0.0
    work: float = 0.0


def simulate(trace: Conversations, machine: Machine, num_replicas: int, policy: str) -> Outcome:
    """Answer all questions of a trace with this many replicas, chosen by a policy of `POLICIES`."""
    run = _Run(machine, num_replicas, POLICIES[policy](num_replicas, machine))
    for start, turns in trace.sessions():
        run.schedule(start, run.ask, _Asked(turns, 0))
    run.to_the_end()
    return run.outcome()


class _Run:
    def __init__(self, machine: Machine, num_replicas: int, policy: Policy) -> None:
        self._machine, self._policy = machine, policy
        self._replicas = [_Replica(Kept(machine.kept_tokens)) for _ in range(num_replicas)]
        self._events: list[tuple[float, int, Callable[[_Asked], None], _Asked]] = []
        self._numbers = count()
        self._now = 0.0
        self._first: list[float] = []
        self._deciding = 0.0
        self._cached = self._prompted = 0

    def schedule(self, when: float, what: Callable[[_Asked], None], asked: _Asked) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (when, next(self._numbers), what, asked))

    def to_the_end(self) -> None:
        """Run all events."""
        while self._events:
            self._now, _, what, asked = heapq.heappop(self._events)
            what(asked)

    def ask(self, asked: _Asked) -> None:
        """Send a question to a replica, where it may wait for a free slot."""
        asked.at = self._now
        started = perf_counter()
        asked.replica = self._policy.choose(asked.turn, self._now)
        self._deciding += perf_counter() - started
        replica = self._replicas[asked.replica]
        if replica.answers < self._machine.places:
            self._begin(replica, asked)
        else:
            replica.waiting.append(asked)

    def _begin(self, replica: _Replica, asked: _Asked) -> None:
        turn = asked.turn
        replica.answers += 1
        cached = min(replica.kept.take(turn.blocks) * BLOCK, turn.prompt_tokens - 1)
        self._cached += cached
        self._prompted += turn.prompt_tokens
        seconds = (turn.prompt_tokens - cached) / self._machine.prefill
        replica.free_at = max(replica.free_at, self._now) + seconds
        replica.work += seconds
        self.schedule(replica.free_at, self._first_token, asked)

    def _first_token(self, asked: _Asked) -> None:
        replica = self._replicas[asked.replica]
        self._first.append(self._now - asked.at)
        asked.first = self._now
        self._policy.computed(asked.replica, asked.turn)
        alone = asked.turn.answer_tokens / self._machine.decode
        replica.work += alone * self._machine.beside
        slowed = alone * (1 + self._machine.beside * (replica.answers - 1))
        self.schedule(self._now + slowed, self._end, asked)

    def _end(self, asked: _Asked) -> None:
        replica = self._replicas[asked.replica]
        replica.answers -= 1
        self._policy.ended(asked.replica, None, self._now - asked.first)
        if replica.waiting:
            self._begin(replica, replica.waiting.popleft())
        if asked.index + 1 < len(asked.turns):
            following = _Asked(asked.turns, asked.index + 1)
            self.schedule(self._now + following.turn.think, self.ask, following)

    def outcome(self) -> Outcome:
        """Return the summary."""
        work = np.array([replica.work for replica in self._replicas])
        first = np.array(self._first)
        return Outcome(
            answers_per_second=len(first) / self._now,
            first_token=float(first.mean()),
            first_token_p99=float(np.quantile(first, 0.99)),
            cached_share=self._cached / self._prompted,
            hot_spot=float(work.max() / work.mean()),
            decision_seconds=self._deciding / len(first),
        )
