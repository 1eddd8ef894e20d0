"""The router of one model: its replicas, what they hold and have to do, and the choice for each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from chaski.cluster.block_index import BlockIndex
from chaski.cluster.routing import Candidate, Load, Speed, choose

__all__ = ["Router"]

# Replicas that are asked besides those that hold a part of the prompt.
_OTHERS = 6
# What is new counts so much in what was measured.
_NEW = 0.1


class Router:
    """The replicas of one model by their numbers. For one thread.

    block_tokens  tokens of a block
    """

    def __init__(self, block_tokens: int, random: Random | None = None) -> None:
        self.index = BlockIndex()
        self._block_tokens = block_tokens
        self._random = Random(0) if random is None else random
        self._speeds: dict[int, Speed] = {}
        self._loads: dict[int, Load] = {}
        self._numbers: list[int] = []

    @property
    def replicas(self) -> Sequence[int]:
        """The numbers of the replicas, in the order in which they came."""
        return self._numbers

    def load(self, replica: int) -> Load:
        """Return what a replica has to do."""
        return self._loads[replica]

    def speed(self, replica: int) -> Speed:
        """Return how fast a replica is, as measured."""
        return self._speeds[replica]

    def join(self, replica: int, places: int, speed: Speed) -> None:
        """Add a replica, or change its places."""
        if replica not in self._loads:
            self._numbers.append(replica)
            self._speeds[replica] = speed
        before = self._loads.get(replica, Load(places))
        self._loads[replica] = Load(places, before.answers, before.pending)

    def leave(self, replica: int) -> None:
        """Remove a replica."""
        if replica in self._loads:
            self._numbers.remove(replica)
            del self._loads[replica], self._speeds[replica]
            self.index.forget(replica)

    def choose(self, blocks: Sequence[int], prompt_tokens: int, without: Iterable[int] = ()) -> Candidate:
        """Return the replica for a prompt that begins with these blocks.

        `without` are replicas that cannot have it. Raises ValueError where none is left.
        """
        barred = set(without)
        found = self.index.holders(blocks)
        names = self._numbers
        if len(names) <= _OTHERS:
            others: Iterable[int] = names
        else:
            others = (names[int(self._random.random() * len(names))] for _ in range(_OTHERS))
        numbers = dict.fromkeys((*found, *others))
        if barred:
            numbers = dict.fromkeys(each for each in (*numbers, *names) if each not in barred)
        return choose(
            (self._candidate(each, found.get(each, 0), prompt_tokens) for each in numbers), prompt_tokens
        )

    def given(self, chosen: Candidate, blocks: Sequence[int], prompt_tokens: int, now: float) -> int:
        """Note that a replica has got a request -> the tokens that it has to compute for its prompt."""
        tokens = max(1, prompt_tokens - chosen.cached)
        load = self._loads[chosen.replica]
        self._loads[chosen.replica] = Load(load.places, load.answers + 1, load.pending + tokens)
        self.index.assume(chosen.replica, blocks, now)
        return tokens

    def computed(self, replica: int, tokens: int) -> None:
        """Note that the prompt of a request is computed, which had so many `tokens` to compute."""
        load = self._loads.get(replica)
        if load is not None:
            self._loads[replica] = Load(load.places, load.answers, max(0, load.pending - tokens))

    def ended(self, replica: int) -> None:
        """Note that a request has ended, however it did."""
        load = self._loads.get(replica)
        if load is not None:
            self._loads[replica] = Load(load.places, max(0, load.answers - 1), load.pending)

    def measured(self, replica: int, prefill: float | None, answer_seconds: float) -> None:
        """Take in how fast an answer was: tokens of its prompt a second, if these were enough to tell."""
        speed = self._speeds.get(replica)
        if speed is not None:
            self._speeds[replica] = Speed(
                speed.prefill if prefill is None else speed.prefill + _NEW * (prefill - speed.prefill),
                speed.answer_seconds + _NEW * (answer_seconds - speed.answer_seconds),
                speed.beside,
            )

    def _candidate(self, replica: int, num_blocks: int, prompt_tokens: int) -> Candidate:
        cached = min(num_blocks * self._block_tokens, prompt_tokens - 1)
        return Candidate(replica, cached, self._loads[replica], self._speeds[replica])
