"""The engine: owns a compiled model, its cache and its slots, and moves all sequences forward together.

There is no thread of its own. Whoever waits for a sequence moves all of them on by one batch; others wait for
that and look again. It knows tokens and outputs, and nothing about text.

While the machine computes one batch, the next one is prepared, as if nothing ended with this one; its tokens
are filled in when they are known. When something did end, or came, it is taken back and prepared again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaski.errors import NotSupportedError, OptionError
from chaski.kvcache import Cache
from chaski.model.program import Program
from chaski.runner.draft import Draft
from chaski.runner.groups import Groups, not_inside
from chaski.runner.images import EncodedImages
from chaski.runner.scheduler import Scheduler
from chaski.runner.sequence import Sequence
from chaski.runner.slots import Policy, Slot, place
from chaski.runner.step import Step, prepare_step

__all__ = ["Engine"]

F32 = npt.NDArray[np.float32]


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
    """Runs up to `parallel` sequences at a time; more wait for a slot. Safe to use from several threads.

    `prompt_cache` says how prompts take over what was computed for others; None is not at all. `images`
    is for models that see. `draft`: the model that guesses for those who ask for it.
    """

    def __init__(
        self,
        program: Program,
        cache: Cache,
        parallel: int,
        prompt_cache: Policy | None = Policy.SMALLER_LOSS,
        images: EncodedImages | None = None,
        draft: Draft | None = None,
    ) -> None:
        self._program = program
        self._cache = cache
        self._prompt_cache = prompt_cache
        self._images = images
        self.draft = draft
        self._scheduler: Scheduler[Sequence] = Scheduler(program.max_tokens, program.max_outputs)
        self._slots = [Slot(index) for index in range(parallel)]
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._computing: Step | None = None
        self._uses = 0
        self._turn = _Turn()

    @property
    def can_guess(self) -> bool:
        """Whether tokens that were guessed wrong can be dropped again without computing others anew."""
        return self._cache.can_step_back

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. It runs while `wait` is called, for it or for any other one.

        Raises OptionError for a group that is larger than a batch, or has more outputs than one.
        """
        for group in sequence.groups:
            if len(group) > self._program.max_tokens:
                raise OptionError(
                    f"{len(group)} tokens must be computed at once, but num_batch is "
                    f"{self._program.max_tokens}; load the model with a larger num_batch"
                )
            num_outputs = len(sequence.outputs(group.start, len(group)))
            if num_outputs > self._program.max_outputs:
                raise OptionError(
                    f"{num_outputs} outputs are wanted at once, but a batch has {self._program.max_outputs}; "
                    "load the model with parallel as large as that"
                )
        self._waiting.append(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Compute until `sequence` has events. Raises what went wrong in the computation."""
        self.wait_until(lambda: bool(sequence.events))

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Compute until `is_ready()`; while it is not, a sequence of the caller has not ended."""
        while not is_ready():
            with self._turn:
                if not is_ready():
                    self._step()

    def close(self) -> None:
        """Let the machine finish what it computes. Nothing may be submitted any more."""
        with self._turn:
            self._program.wait()

    def _step(self) -> None:
        """Give every sequence what it gets from the batch that is computed, and go on with the next one."""
        try:
            step = self._computing or self._launch(self._prepare())
            assert step, "somebody waits, and there is nothing to compute"
            upcoming = self._prepare() if self._is_foreseeable() else None
            self._program.wait()
            self._take(step, self._program.outputs(), self._program.likely())
            self._computing = None
            self._guess(step)
            if upcoming is not None and self._is_outdated(upcoming):
                self._cache.undo_forward(upcoming.batch)
                upcoming = None
            self._launch(upcoming or self._prepare())
        except BaseException:
            self._recover()
            raise
        for sequence, _ in step.shares:
            sequence.write()

    def _prepare(self) -> Step | None:
        """The next batch, or None if there is nothing to compute."""
        self._dismiss()
        self._admit()
        for sequence in self._running:
            dropped = sequence.full_context
            if dropped:
                self._shift(sequence, dropped)
        shares = self._scheduler.next(self._running)
        return prepare_step(shares, self._program, self._images) if shares else None

    def _launch(self, step: Step | None) -> Step | None:
        """Fill in the tokens and the rows of images, and begin to compute.

        What was not encoded before is encoded now, while the machine computes nothing else.
        """
        if step is None:
            return None
        tokens = step.fill(self._images)
        most = self._program.max_likely
        step.num_likely[:] = [sequence.num_likely(most) for sequence, _ in step.shares]
        likely = [n for n, count in zip(step.num_likely, step.num_outputs, strict=True) for _ in range(count)]
        self._program.launch(step.inputs, likely)
        self._computing = step
        for (sequence, _), computed in zip(step.shares, tokens, strict=True):
            sequence.slot.tokens += computed
        return step

    def _take(self, step: Step, outputs: F32, likely: F32) -> None:
        """Hand out the outputs; those of sequences that ended meanwhile are dropped."""
        row = 0
        wanted = zip(step.shares, step.num_outputs, step.num_likely, strict=True)
        for (sequence, _), count, num_likely in wanted:
            if sequence.is_running and count:
                end = row + count
                num_wrong = sequence.take(outputs[row:end], likely[row:end, :, :num_likely])
                if num_wrong:
                    slot = sequence.slot
                    self._keep(slot, len(slot.tokens) - num_wrong, sequence.groups)
            row += count

    def _guess(self, step: Step) -> None:
        """Let those who have new tokens guess the next ones."""
        if self.draft is not None:
            self.draft.compute()
        for (sequence, _), count in zip(step.shares, step.num_outputs, strict=True):
            if sequence.is_running and count:
                sequence.guess()

    def _is_foreseeable(self) -> bool:
        """Whether the batch after the one that is computed can be prepared already."""
        return not any(sequence.full_context or sequence.is_guessing for sequence in self._running)

    def _is_outdated(self, step: Step) -> bool:
        """Whether a batch was prepared without what has happened since: an end, a guess, a new sequence."""
        if not all(sequence.is_running and not sequence.is_guessing for sequence in self._running):
            return True
        return bool(self._waiting and any(slot.is_free for slot in self._slots))

    def _dismiss(self) -> None:
        """Free the slots of sequences that ended or lost their reader; the tokens stay for the next one."""
        running = []
        for sequence in self._running:
            if sequence.is_running:
                running.append(sequence)
            else:
                sequence.slot.is_free = True
        self._running = running

    def _admit(self) -> None:
        """Give waiting sequences the slots that are free, in the order in which they came."""
        while self._waiting:
            sequence = self._waiting[0]
            if sequence.is_running and not self._start(sequence):
                return
            self._waiting.popleft()

    def _start(self, sequence: Sequence) -> bool:
        """Place a sequence on what the slots hold of its prompt; False while no slot is free."""
        if self._prompt_cache is None or not sequence.can_take_over:
            placement = place(self._slots, [])
        else:
            placement = place(
                self._slots, sequence.tokens, sequence.groups, self._prompt_cache, sequence.scope
            )
        if placement is None:
            return False
        source, slot, length = placement
        # The last token of the prompt is always computed: its outputs are what the answer begins with.
        length = not_inside(min(length, len(sequence.tokens) - 1), sequence.groups)
        if length and source is not slot:
            self._cache.copy_prefix(source.index, slot.index, length)
            slot.tokens, slot.shifted_at = source.tokens[:length], None
        self._keep(slot, length, sequence.groups)
        self._uses += 1
        slot.is_free, slot.last_used, slot.scope = False, self._uses, sequence.scope
        sequence.start(slot)
        self._running.append(sequence)
        return True

    def _keep(self, slot: Slot, length: int, groups: Groups) -> None:
        """Make slot and cache hold the first `length` tokens, or as many of them as others can follow."""
        length = self._cache.resumable(slot.index, length)
        while not_inside(length, groups) != length:
            length = self._cache.resumable(slot.index, not_inside(length, groups))
        try:
            self._cache.remove(slot.index, length)
        except NotSupportedError:
            length = 0
            self._cache.remove(slot.index, 0)
        slot.cut(length)
        slot.groups = groups

    def _shift(self, sequence: Sequence, dropped: range) -> None:
        """Drop tokens of a full sequence; the rest is moved, or computed again where it cannot be.

        Which of both depends on nothing but the sequence itself, since moved keys are not the same numbers as
        computed ones. What others hold too is not moved before it was computed again for this sequence alone.
        """
        slot, groups = sequence.slot, sequence.groups
        as_computed = dropped.start if slot.shifted_at is None else min(dropped.start, slot.shifted_at)
        if not self._can_move(slot, dropped):
            sequence.drop(dropped)
            self._keep(slot, as_computed, groups)
            slot.groups = sequence.groups
            return
        own = self._cache.first_shared(slot.index, dropped.stop)
        if own < len(slot.tokens):
            self._keep(slot, own, groups)
        else:
            self._cache.remove(slot.index, dropped.start, dropped.stop)
            sequence.drop(dropped)
            del slot.tokens[dropped.start : dropped.stop]
            slot.groups = sequence.groups
        slot.shifted_at = as_computed  # from now on nobody shares what is moved

    def _can_move(self, slot: Slot, dropped: range) -> bool:
        """Whether what is behind `dropped` can be moved down: all of it as computed, or all moved before."""
        is_alike = slot.shifted_at is None or slot.shifted_at <= dropped.start
        if not is_alike or dropped.stop >= len(slot.tokens):
            return False
        try:
            self._cache.check_remove(slot.index, dropped.start, dropped.stop)
        except NotSupportedError:
            return False
        return True

    def _recover(self) -> None:
        """After a failure, or Ctrl-C: cache and slots agree again, and each sequence has something to do."""
        self._program.wait()
        self._computing = None
        for sequence in self._running:
            slot = sequence.slot
            self._keep(slot, min(len(slot.tokens), len(sequence.tokens) - 1), sequence.groups)
            sequence.write()
