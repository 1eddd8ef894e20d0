"""Simulate prompts and answers on the same replicas or on different ones.

Replicas work in steps like the engine: one step computes a token of each answer, and as many prompt tokens as
fit the batch. In the separate mode, some replicas compute only prompts. They send the blocks of a prompt over
the link to the replica that writes the answer, except the blocks that it already has of the same session.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import numpy as np
from msgspec import Struct, field

from benchmarks.simulated.replicas import BLOCK, Conversations, Kept, Turn

__all__ = ["Engine", "Link", "Phases", "simulate_phases"]


class Engine(Struct, frozen=True):
    """The measured speed and size of each replica.

    prefill      prompt tokens per second
    one, many    seconds of a step with one answer, and of one with `width` answers
    batch        maximum tokens of a step
    places       number of concurrent answers of a replica
    cell_bytes   bytes of a token's keys and values
    kept_tokens  prompt tokens whose blocks it keeps
    """

    prefill: float
    one: float
    many: float
    width: int = 8
    batch: int = 512
    places: int = 8
    cell_bytes: int = 32_768
    kept_tokens: int = 200_000

    def seconds(self, answers: int, prompt_tokens: int) -> float:
        """Return the time of a step. Next to prompts, tokens of answers take as long as prompt tokens."""
        if prompt_tokens:
            return (answers + prompt_tokens) / self.prefill
        return self.one + (self.many - self.one) * (answers - 1) / (self.width - 1)


class Link(Struct, frozen=True):
    """A connection between replicas: seconds until the first byte arrives, and bytes per second."""

    latency: float = 0.0002
    bandwidth: float = 125e6


class Phases(Struct, frozen=True):
    """The result of a trace. Times are seconds.

    first_token  time from the question to the first token: mean and 99th percentile
    gap          time between two tokens of an answer: mean and 99th percentile
    moved_bytes  bytes of blocks over links per answer
    """

    answers_per_second: float
    first_token: float
    first_token_p99: float
    gap: float
    gap_p99: float
    moved_bytes: float


class _Asked(Struct):
    """A turn in progress: remaining tokens of its prompt and answer, and the time of its last token."""

    turns: Sequence[Turn]
    index: int
    at: float
    prompt_left: int = 0
    answer_left: int = 0
    last: float = 0.0

    @property
    def turn(self) -> Turn:
        return self.turns[self.index]


class _Replica(Struct):
    kept: Kept
    places: int
    waiting: deque[_Asked] = field(default_factory=deque)
    answers: list[_Asked] = field(default_factory=list)
    arriving: deque[_Asked] = field(default_factory=deque)
    link_free_at: float = 0.0
    is_busy: bool = False

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.answers) + len(self.arriving)


def simulate_phases(
    trace: Conversations, engine: Engine, num_replicas: int, num_prefill: int = 0, link: Link | None = None
) -> Phases:
    """Answer all questions of a trace; `num_prefill` replicas compute only prompts; with 0, all do both.

    The replicas that write answers share the slots of all replicas, so that the total memory is the same.
    Each receives the blocks of others one after the other.
    """
    run = _Run(engine, num_replicas, num_prefill, Link() if link is None else link)
    run.answer(trace)
    return run.outcome()


class _Run:
    def __init__(self, engine: Engine, num_replicas: int, num_prefill: int, link: Link) -> None:
        self._engine, self._link = engine, link
        num_writing = num_replicas - num_prefill
        places = engine.places * num_replicas // num_writing
        self._writing = [_Replica(Kept(engine.kept_tokens), places) for _ in range(num_writing)]
        self._prompting = [_Replica(Kept(engine.kept_tokens), 0) for _ in range(num_prefill)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._now = 0.0
        # The replicas that compute a session's prompts and write its answers, and the session's tokens there.
        self._homes: dict[tuple[int, bool], _Replica] = {}
        self._moved: dict[int, int] = {}
        self._first: list[float] = []
        self._gaps: list[float] = []
        self._num_bytes = 0.0

    def answer(self, trace: Conversations) -> None:
        """Run all events."""
        for start, turns in trace.sessions():
            self._at(start, partial(self._ask, turns, 0))
        while self._events:
            self._now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happen))

    def _ask(self, turns: Sequence[Turn], index: int) -> None:
        asked = _Asked(turns, index, self._now)
        replica = self._home(asked, self._prompting or self._writing)
        cached = min(self._cached(replica, asked), asked.turn.prompt_tokens - 1)
        asked.prompt_left, asked.answer_left = asked.turn.prompt_tokens - cached, asked.turn.answer_tokens
        replica.waiting.append(asked)
        self._begin(replica)

    def _cached(self, replica: _Replica, asked: _Asked) -> int:
        """Return the number of cached tokens of a prompt, including a previous answer of this replica."""
        cached = replica.kept.take(asked.turn.blocks) * BLOCK
        if asked.index and replica.places:
            before = asked.turns[asked.index - 1]
            if cached >= before.prompt_tokens // BLOCK * BLOCK:
                return max(cached, before.prompt_tokens + before.answer_tokens)
        return cached

    def _home(self, asked: _Asked, replicas: Sequence[_Replica]) -> _Replica:
        """Return the replica of the session's previous turn, or the least busy one."""
        key = asked.turn.session, replicas[0].places > 0
        if key not in self._homes:
            self._homes[key] = min(replicas, key=lambda replica: replica.load)
        return self._homes[key]

    def _begin(self, replica: _Replica) -> None:
        """Begin the next step of an idle replica that has work."""
        if replica.is_busy:
            return
        while replica.arriving and len(replica.answers) < replica.places:
            replica.answers.append(replica.arriving.popleft())
        writing = list(replica.answers)
        room, parts = self._engine.batch - len(writing), list[tuple[_Asked, int]]()
        free = replica.places - len(writing) if replica.places else len(replica.waiting)
        for asked in list(replica.waiting)[:free]:
            if room:
                parts.append((asked, min(room, asked.prompt_left)))
                room -= parts[-1][1]
        if not writing and not parts:
            return
        replica.is_busy = True
        seconds = self._engine.seconds(len(writing), sum(tokens for _, tokens in parts))
        self._at(self._now + seconds, lambda: self._end(replica, writing, parts))

    def _end(self, replica: _Replica, writing: list[_Asked], parts: list[tuple[_Asked, int]]) -> None:
        replica.is_busy = False
        for asked in writing:
            self._gaps.append(self._now - asked.last)
            self._write(replica, asked)
        for asked, tokens in parts:
            asked.prompt_left -= tokens
            if not asked.prompt_left:
                replica.waiting.remove(asked)
                self._first.append(self._now - asked.at)
                replica.answers.append(asked)
                self._write(replica, asked)
                if not replica.places and asked.answer_left:
                    replica.answers.remove(asked)
                    self._move(asked)
        self._begin(replica)

    def _write(self, replica: _Replica, asked: _Asked) -> None:
        """Note a token of an answer."""
        asked.last = self._now
        asked.answer_left -= 1
        if asked.answer_left:
            return
        replica.answers.remove(asked)
        following = asked.index + 1
        if following < len(asked.turns):
            think = asked.turns[following].think
            self._at(self._now + think, lambda: self._ask(asked.turns, following))

    def _move(self, asked: _Asked) -> None:
        """Send the blocks that the writing replica lacks, after its pending transfers."""
        target = self._home(asked, self._writing)
        there = self._moved.get(asked.turn.session, 0)
        num_bytes = (asked.turn.prompt_tokens - there) * self._engine.cell_bytes
        self._moved[asked.turn.session] = asked.turn.prompt_tokens + asked.turn.answer_tokens
        self._num_bytes += num_bytes
        begin = max(self._now + self._link.latency, target.link_free_at)
        target.link_free_at = begin + num_bytes / self._link.bandwidth
        self._at(target.link_free_at, lambda: self._arrive(target, asked))

    def _arrive(self, target: _Replica, asked: _Asked) -> None:
        target.arriving.append(asked)
        self._begin(target)

    def outcome(self) -> Phases:
        """Return the summary."""
        first, gaps = np.array(self._first), np.array(self._gaps)
        return Phases(
            answers_per_second=len(first) / self._now,
            first_token=float(first.mean()),
            first_token_p99=float(np.quantile(first, 0.99)),
            gap=float(gaps.mean()),
            gap_p99=float(np.quantile(gaps, 0.99)),
            moved_bytes=self._num_bytes / len(first),
        )
