"""The sequences of an engine: those that run, each in a slot, and those that wait for one.

A sequence whose prompt begins like that of another one, which is just being computed, follows that one: it
waits until what both have in common is there, and takes it over. A slot stays free for it meanwhile, so who
came later does not get ahead of it.

A sequence may have members, which have slots of their own: it starts when there are enough for all. Another
one that would compute the same joins it, and takes no slot.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.live import LiveSequences, TokenTotals
from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix.following import Following
from chaski.runner.prefix.prefix_cache import PrefixCache
from chaski.runner.prefix.restoration import BlockMissing, Restoration

__all__ = ["SequenceQueue"]


class SequenceQueue:
    """Gives slots to sequences in the order in which they came."""

    def __init__(self, prefix_cache: PrefixCache, isolation: Isolation) -> None:
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.restoring: list[Restoration] = []
        self.following: list[Following] = []
        self.joined: list[tuple[Sequence, Sequence]] = []  # each with the one that it joined
        self.ended = TokenTotals()  # of the sequences that ended
        self._prefix_cache = prefix_cache
        self._isolation = isolation

    def live(self, most: int) -> LiveSequences:
        """Return the current figures of at most `most` sequences. Any thread may call it."""
        now, running, ended = perf_counter(), list(self.running), self.ended
        found = [(each, "decode" if each.counts.generated else "prefill") for each in running]
        found += [(each.sequence, "restoring") for each in list(self.restoring)]
        found += [(each.sequence, "following") for each in list(self.following)]
        found += [(each, "waiting") for each in (*(one for one, _ in list(self.joined)), *list(self.waiting))]
        return LiveSequences(
            seconds=now,
            totals=TokenTotals.together([ended, *(each.totals for each in running)]),
            num_sequences=len(found),
            sequences=tuple(each.live(state, now) for each, state in found[:most]),
        )

    @property
    def can_admit(self) -> bool:
        """True if a sequence waits and a slot is free for it."""
        return any(each.is_ready for each in self.following) or self._has_room

    @property
    def _has_room(self) -> bool:
        """True if the next sequence has free slots, without those kept for sequences that follow others."""
        if not self.waiting:
            return False
        kept = sum(1 + len(each.sequence.members) for each in self.following)
        kept += sum(len(each.sequence.members) for each in self.restoring)
        free = sum(slot.is_free for slot in self._prefix_cache.slots) - kept
        return free > len(self.waiting[0].members)

    def dismiss(self) -> None:
        """Free the slots of sequences that ended or lost their reader; the tokens stay for the next one."""
        running, ended = [], self.ended
        for sequence in self.running:
            if sequence.is_running:
                running.append(sequence)
            else:
                ended = TokenTotals.together([ended, sequence.totals])
                self._prefix_cache.note_end(sequence)
                sequence.slot.is_free = True
        self.running, self.ended = running, ended
        for restoration in self.restoring:
            if not restoration.sequence.is_running:
                self._prefix_cache.give_up(restoration)
        self.restoring = [each for each in self.restoring if each.sequence.is_running]
        self.following = [each for each in self.following if each.sequence.is_running]
        joined = [(each, leader) for each, leader in self.joined if each.is_running]
        # The one that they joined may have ended without events for them.
        self._return([each for each, leader in joined if not leader.is_running])
        self.joined = [(each, leader) for each, leader in joined if leader.is_running]

    def admit(self) -> None:
        """Give the free slots to waiting sequences."""
        for each in [each for each in self.following if each.is_ready]:
            self._start_or_follow(each.sequence)
            self.following.remove(each)
        while self.waiting:
            first = self.waiting[0]
            if first.is_running and (leader := first.join(self._placed())) is not None:
                self.joined.append((first, leader))
            elif first.is_running and self._has_room:
                self._start_or_follow(first)
            elif first.is_running:
                break
            self.waiting.popleft()

    def _placed(self) -> list[Sequence]:
        """Return the sequences that have a slot, or one that is kept for them."""
        restoring = [each.sequence for each in self.restoring]
        return [*self.running, *restoring, *(each.sequence for each in self.following)]

    def _start_or_follow(self, sequence: Sequence) -> None:
        """Start a sequence, or let it wait for another one, if there is one that computes its prompt."""
        others = [(each, each.slot) for each in self.running]
        others += [(each.sequence, each.slot) for each in self.restoring]
        found = self._prefix_cache.follow(sequence, others)
        if found is None:
            self._start(sequence)
        else:
            found.leader.breaks.append(found.length)
            self.following.append(found)

    def _start(self, sequence: Sequence) -> None:
        """Give a sequence a slot; one is free."""
        started = self._isolation.attempt(sequence, None, self._prefix_cache.start, sequence)
        if isinstance(started, Restoration):
            self.restoring.append(started)
        elif started is not None:
            self._run(sequence)
        else:
            self._prefix_cache.forget(slot for slot in self._prefix_cache.slots if slot.is_free)

    def _run(self, sequence: Sequence) -> None:
        """Run a sequence that has its slot; its members get theirs."""
        self.running.append(sequence)
        for member in sequence.members:
            self._isolation.attempt(member, None, self._prefix_cache.reserve, member)
            self.running.append(member)

    def restore(self, max_bytes: int) -> None:
        """Advance each restoration by about `max_bytes`. Nothing may be computed meanwhile."""
        for restoration in list(self.restoring):
            sequence, num_failed = restoration.sequence, self._isolation.num_failed
            is_done = self._isolation.attempt(sequence, False, self._advance, restoration, max_bytes)
            if self._isolation.num_failed > num_failed:
                self._prefix_cache.give_up(restoration)
            if is_done or self._isolation.num_failed > num_failed:
                self.restoring.remove(restoration)

    def _advance(self, restoration: Restoration, max_bytes: int) -> bool:
        """Return whether a restoration is over: its sequence runs, or waits for a slot once more."""
        try:
            is_done = restoration.advance(max_bytes)
        except BlockMissing:
            self._prefix_cache.give_up(restoration)
            leader = restoration.sequence
            self._return([leader, *(each.sequence for each in self.following if each.leader is leader)])
            self.following = [each for each in self.following if each.leader is not leader]
            return True
        if is_done:
            self._prefix_cache.finish(restoration)
            self._run(restoration.sequence)
        return is_done

    def _return(self, sequences: list[Sequence]) -> None:
        """Let sequences that have no slot yet wait for one before all others."""
        placed = [*self.running, *self.waiting]
        returning = [each for each in dict.fromkeys(sequences) if each not in placed]
        self.waiting.extendleft(reversed(returning))

    def restart(self) -> None:
        """Begin again with empty slots: the sequences that still run compute all their tokens once more."""
        self.running = [sequence for sequence in self.running if sequence.is_running]
        partial = [each for each in self.running if not set(each.members) <= set(self.running)]
        dropped = {one for each in partial for one in (each, *each.members)}
        self.running = [sequence for sequence in self.running if sequence not in dropped]
        if self.waiting and self.waiting[0] in self.running:  # it was on its way from here to there
            self.waiting.popleft()
        unplaced = [each.sequence for each in self.restoring] + [each.sequence for each in self.following]
        self._return([*partial, *unplaced, *(each for each, _ in self.joined)])
        self.restoring, self.following, self.joined = [], [], []
        slots = self._prefix_cache.slots
        self._prefix_cache.forget(slots)
        busy = [sequence.slot for sequence in self.running]
        for slot in slots:
            slot.is_free = slot not in busy
        for sequence in self.running:
            sequence.slot.groups = sequence.groups
            sequence.restart()
