"""The router of one model: its replicas, their blocks and load, and the choice for each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from chaski.cluster.block_index import BlockIndex
from chaski.cluster.routing import Candidate, Load, Speed, choose

__all__ = ["Router"]

# Replicas considered in addition to those that hold a prefix of the prompt.
_OTHERS = 6
# Weight of a new measurement in the moving average.
_NEW = 0.1


class Router:
    """The replicas of one model, by number. Not thread-safe.

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
        """The numbers of the replicas, in order of arrival."""
        return self._numbers

    def load(self, replica: int) -> Load:
        """Return the load of a replica."""
        return self._loads[replica]

    def speed(self, replica: int) -> Speed:
        """Return the measured speed of a replica."""
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

        Replicas in `without` are excluded. Raises ValueError if none is left.
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
        """Record a request sent to a replica; return the prompt tokens that it must compute."""
        tokens = max(1, prompt_tokens - chosen.cached)
        load = self._loads[chosen.replica]
        self._loads[chosen.replica] = Load(load.places, load.answers + 1, load.pending + tokens)
        self.index.assume(chosen.replica, blocks, now)
        return tokens

    def computed(self, replica: int, tokens: int) -> None:
        """Record that the prompt of a request, with `tokens` to compute, is computed."""
        load = self._loads.get(replica)
        if load is not None:
            self._loads[replica] = Load(load.places, load.answers, max(0, load.pending - tokens))

    def ended(self, replica: int) -> None:
        """Record that a request has ended, successfully or not."""
        load = self._loads.get(replica)
        if load is not None:
            self._loads[replica] = Load(load.places, max(0, load.answers - 1), load.pending)

    def measured(self, replica: int, prefill: float | None, answer_seconds: float) -> None:
        """Record the speed of an answer. prefill: prompt tokens per second, or None if too few to measure."""
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
