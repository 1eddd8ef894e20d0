"""The engine: owns a compiled model, its cache and its slots, and moves all sequences forward together.

There is no thread of its own. Whoever waits for a sequence computes the next batch, for all of them; others
wait for that batch and look again. It knows tokens and logits, and nothing about text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from chaski.errors import NotSupportedError
from chaski.kvcache import Cache
from chaski.model.input import Batch
from chaski.model.program import Program
from chaski.runner.scheduler import schedule
from chaski.runner.sequence import Sequence
from chaski.runner.slots import Slot, place

__all__ = ["Engine"]


class _Turn:
    """A lock that nobody gets twice in a row while another thread waits for it.

    The one that waits holds the gate, which all must pass. Much quicker than a condition variable: the
    code around it runs between any two tokens, when none of it is in the processor's caches.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._gate:
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Engine:
    """Runs up to `parallel` sequences at a time; more wait for a slot. Safe to use from several threads."""

    def __init__(self, program: Program, cache: Cache, parallel: int, prompt_cache: bool) -> None:
        self._program = program
        self._cache = cache
        self._prompt_cache = prompt_cache
        self._slots = [Slot(index) for index in range(parallel)]
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._uses = 0
        self._turn = _Turn()

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. It runs while `wait` is called, for it or for any other one."""
        self._waiting.append(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Compute until `sequence` has events. Raises what went wrong in the computation."""
        while not sequence.events:
            with self._turn:
                if not sequence.events:
                    self._step()

    def logits(self, ids: Items[int]) -> npt.NDArray[np.float32]:
        """The logits of every position of a sequence of its own -> (len(ids), vocab_size), a copy."""
        with self._turn:
            slot = self._empty_slot()
            try:
                step = min(self._program.max_outputs, self._program.max_tokens)
                starts = range(0, len(ids), step)
                chunks = [self._evaluate(slot, ids[begin : begin + step], begin) for begin in starts]
            finally:
                self._cache.remove(slot.index, 0)
            return np.concatenate(chunks)

    def _step(self) -> None:
        """Compute one batch and give every sequence in it what it gets."""
        self._dismiss()
        self._admit()
        for sequence in self._running:
            shift = sequence.full_context
            if shift is not None:
                self._shift(sequence, shift.dropped)
        shares = schedule(self._running, self._program.max_tokens)
        assert shares, "somebody waits, and there is nothing to compute"
        try:
            self._commit(shares, self._program.forward(self._batch(shares)))
        except BaseException:
            self._undo(shares)
            raise

    def _dismiss(self) -> None:
        """Free the slots of sequences that ended or lost their reader; the tokens stay for the next one."""
        running = []
        for sequence in self._running:
            if sequence.is_finished:
                sequence.slot.is_free = True
            else:
                running.append(sequence)
        self._running = running

    def _admit(self) -> None:
        """Give waiting sequences the slots that are free, in the order in which they came."""
        while self._waiting:
            sequence = self._waiting[0]
            if not sequence.is_finished and not self._start(sequence):
                return
            self._waiting.popleft()

    def _start(self, sequence: Sequence) -> bool:
        """Place a sequence on what the slots hold of its prompt; False while no slot is free."""
        placement = place(self._slots, sequence.tokens if self._prompt_cache else [])
        if placement is None:
            return False
        source, slot, length = placement
        # The last token of the prompt is always computed: its logits are what the answer begins with.
        length = min(length, len(sequence.tokens) - 1)
        if length and source is not slot:
            self._cache.copy_prefix(source.index, slot.index, length)
            slot.tokens, slot.shifted_at = source.tokens[:length], None
        self._keep(slot, length)
        self._uses += 1
        slot.is_free, slot.last_used = False, self._uses
        sequence.start(slot)
        self._running.append(sequence)
        return True

    def _keep(self, slot: Slot, length: int) -> None:
        """Make the cache hold the first `length` tokens of a slot, or none where it cannot."""
        if not self._cache.can_resume(slot.index, length):
            length = 0
        try:
            self._cache.remove(slot.index, length)
        except NotSupportedError:
            length = 0
            self._cache.remove(slot.index, 0)
        slot.cut(length)

    def _shift(self, sequence: Sequence, dropped: range) -> None:
        """Drop tokens of a full sequence. Where the rest cannot be moved, it is computed again."""
        slot = sequence.slot
        try:
            self._cache.remove(slot.index, dropped.start, dropped.stop)
        except NotSupportedError:
            self._keep(slot, dropped.start)
        else:
            del slot.tokens[dropped.start : dropped.stop]
            slot.shifted_at = dropped.start
        sequence.drop(dropped)

    def _batch(self, shares: Items[tuple[Sequence, int]]) -> Batch:
        """The batch as arrays. Lists first: at one token a sequence that is the quickest."""
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        outputs: list[int] = []
        for sequence, count in shares:
            slot = sequence.slot
            begin = len(slot.tokens)
            tokens += sequence.tokens[begin : begin + count]
            positions += range(begin, begin + count)
            sequences += [slot.index] * count
            if begin + count == len(sequence.tokens):
                outputs.append(len(tokens) - 1)
        return Batch(*(np.array(values, np.int32) for values in (tokens, positions, sequences, outputs)))

    def _commit(self, shares: Items[tuple[Sequence, int]], logits: npt.NDArray[np.float32]) -> None:
        """Record what the cache holds now; sequences with nothing left to compute get their next token."""
        for sequence, count in shares:
            held = sequence.slot.tokens
            held += sequence.tokens[len(held) : len(held) + count]
        ready = [sequence for sequence, _ in shares if sequence.num_pending == 0]
        for sequence, row in zip(ready, logits, strict=True):
            sequence.advance(row)

    def _undo(self, shares: Items[tuple[Sequence, int]]) -> None:
        """After a failure, or Ctrl-C: cache and slots agree again, and each sequence has something to do."""
        for sequence, _ in shares:
            slot = sequence.slot
            self._keep(slot, min(len(slot.tokens), len(sequence.tokens) - 1))

    def _empty_slot(self) -> Slot:
        """A free slot, emptied; computes until there is one."""
        while True:
            self._dismiss()
            free = [slot for slot in self._slots if slot.is_free]
            if free:
                slot = min(free, key=lambda slot: slot.last_used)
                self._keep(slot, 0)
                return slot
            self._step()

    def _evaluate(self, slot: Slot, ids: Items[int], begin: int) -> npt.NDArray[np.float32]:
        """The logits of some tokens of a slot's sequence, from position `begin` on."""
        positions = np.arange(begin, begin + len(ids), dtype=np.int32)
        sequences = np.full_like(positions, slot.index)
        batch = Batch(np.array(ids, np.int32), positions, sequences, positions - begin)
        return self._program.forward(batch).copy()
