"""The sequences of an engine: those that run, each in a slot, and those that wait for one."""

from __future__ import annotations

from collections import deque

from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix.prompt_cache import PromptCache
from chaski.runner.prefix.restoration import BlockMissing, Restoration

__all__ = ["SequenceQueue"]


class SequenceQueue:
    """Gives slots to sequences in the order in which they came."""

    def __init__(self, prompt_cache: PromptCache, isolation: Isolation) -> None:
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.restoring: list[Restoration] = []
        self._prompt_cache = prompt_cache
        self._isolation = isolation

    @property
    def can_admit(self) -> bool:
        """True if a sequence waits and a slot is free."""
        return bool(self.waiting and any(slot.is_free for slot in self._prompt_cache.slots))

    def dismiss(self) -> None:
        """Free the slots of sequences that ended or lost their reader; the tokens stay for the next one."""
        running = []
        for sequence in self.running:
            if sequence.is_running:
                running.append(sequence)
            else:
                self._prompt_cache.note_end(sequence)
                sequence.slot.is_free = True
        self.running = running
        for restoration in self.restoring:
            if not restoration.sequence.is_running:
                self._prompt_cache.give_up(restoration)
        self.restoring = [each for each in self.restoring if each.sequence.is_running]

    def admit(self) -> None:
        """Give the free slots to waiting sequences."""
        while self.waiting:
            sequence = self.waiting[0]
            if sequence.is_running:
                num_failed = self._isolation.num_failed
                started = self._isolation.attempt(sequence, None, self._prompt_cache.start, sequence)
                if isinstance(started, Restoration):
                    self.restoring.append(started)
                elif started is not None:
                    self.running.append(sequence)
                elif self._isolation.num_failed == num_failed:
                    return  # no slot is free
                else:
                    self._prompt_cache.forget(slot for slot in self._prompt_cache.slots if slot.is_free)
            self.waiting.popleft()

    def restore(self, max_bytes: int) -> None:
        """Go on with restorations by about so many bytes each. Nothing may be computed meanwhile."""
        for restoration in list(self.restoring):
            sequence, num_failed = restoration.sequence, self._isolation.num_failed
            is_done = self._isolation.attempt(sequence, False, self._advance, restoration, max_bytes)
            if self._isolation.num_failed > num_failed:
                self._prompt_cache.give_up(restoration)
            if is_done or self._isolation.num_failed > num_failed:
                self.restoring.remove(restoration)

    def _advance(self, restoration: Restoration, max_bytes: int) -> bool:
        """Return whether a restoration is over: its sequence runs, or waits for a slot once more."""
        try:
            is_done = restoration.advance(max_bytes)
        except BlockMissing:
            self._prompt_cache.give_up(restoration)
            self.waiting.appendleft(restoration.sequence)
            return True
        if is_done:
            self._prompt_cache.finish(restoration)
            self.running.append(restoration.sequence)
        return is_done

    def restart(self) -> None:
        """Begin again with empty slots: the sequences that still run compute all their tokens once more."""
        self.running = [sequence for sequence in self.running if sequence.is_running]
        if self.waiting and self.waiting[0] in self.running:  # it was on its way from here to there
            self.waiting.popleft()
        returning = [each.sequence for each in self.restoring if each.sequence not in self.running]
        self.waiting.extendleft(sequence for sequence in reversed(returning) if sequence not in self.waiting)
        self.restoring = []
        slots = self._prompt_cache.slots
        self._prompt_cache.forget(slots)
        busy = [sequence.slot for sequence in self.running]
        for slot in slots:
            slot.is_free = slot not in busy
        for sequence in self.running:
            sequence.slot.groups = sequence.groups
            sequence.restart()
