"""Batches in flight: from the launch of a batch to the events of its sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chaski.model.output_rows import OutputRows
from chaski.model.program import Program, Run
from chaski.runner.engine.batch import PreparedBatch
from chaski.runner.engine.images import EncodedImages
from chaski.runner.engine.isolation import Isolation
from chaski.runner.engine.prompt_timer import PromptTimer
from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix.prefix_cache import PrefixCache

__all__ = ["InFlight", "Launched"]

F32 = npt.NDArray[np.float32]


class Launched(NamedTuple):
    """A batch and its run on the machine. Slots with a larger `last_used` were taken after the launch."""

    prepared: PreparedBatch
    run: Run
    last_used: int


class InFlight:
    """Launches batches, and hands their outputs to their sequences in the order of the launches.

    batches      those that have not ended, the oldest first
    num_ahead    number of batches launched while another was in flight, since none was
    unwritten    sequences that took outputs and have not made their events yet
    """

    def __init__(
        self,
        program: Program,
        prefix_cache: PrefixCache,
        isolation: Isolation,
        images: EncodedImages | None,
    ) -> None:
        self.batches: deque[Launched] = deque()
        self.num_ahead = 0
        self.unwritten: list[Sequence] = []
        self._program = program
        self._prefix_cache = prefix_cache
        self._isolation = isolation
        self._images = images
        tiers = prefix_cache.tiers
        self._timer = PromptTimer(_ignore if tiers is None else tiers.prefill.measure)

    @property
    def num_stages(self) -> int:
        """Number of batches that the machine can compute at the same time."""
        return self._program.stages

    @property
    def awaiting(self) -> list[Sequence]:
        """The sequences whose next tokens depend on batches in flight."""
        found: list[Sequence] = []
        for prepared, *_ in self.batches:
            shares = zip(prepared.shares, prepared.num_outputs, strict=True)
            found += [sequence for (sequence, _), num_outputs in shares if num_outputs]
        return found

    def launch(
        self, prepared: PreparedBatch, before: tuple[Run, Mapping[Sequence, int]] | None = None
    ) -> None:
        """Fill in the tokens and the rows of images, and start the computation.

        `before` is the run that finds the tokens that the host does not know, with its `last_rows`.
        """
        tokens = prepared.fill(self._images)
        most = self._program.max_top_logits
        prepared.num_top_logits[:] = [sequence.num_top_logits(most) for sequence, _ in prepared.shares]
        each = zip(prepared.num_top_logits, prepared.num_outputs, strict=True)
        inputs = prepared.inputs if before is None else prepared.inputs_after(*before)
        counts = [n for n, count in each for _ in range(count)]
        run = self._program.launch(inputs, counts, self._chances(prepared))
        self.num_ahead = self.num_ahead + 1 if self.batches else 0
        self.batches.append(Launched(prepared, run, self._prefix_cache.last_used))
        self._timer.launch(len(prepared.batch.tokens))
        for (sequence, count), known in zip(prepared.shares, tokens, strict=True):
            sequence.slot.tokens += known
            if len(known) == count:
                self._prefix_cache.note(sequence)

    def end_oldest(self) -> PreparedBatch:
        """Wait for the oldest batch, and give its sequences their outputs."""
        prepared, run, _ = self.batches[0]
        self._program.wait(len(self.batches) - 1)
        if len(self.batches) == 1:
            self._prefix_cache.keep_noted()
            self._timer.end()
        elif self._program.stages == 1:
            self._timer.end(len(prepared.batch.tokens))
        elif any(prepared.num_outputs):
            self._timer.drop()  # several batches shared the time
        self.unwritten += [sequence for sequence, _ in prepared.shares]
        if any(prepared.num_outputs):
            self._take(prepared, run.outputs(), run.top_logits())
        self.batches.popleft()
        return prepared

    def write(self) -> None:
        """Let the sequences make the events of the outputs that they took."""
        for sequence in self.unwritten:
            self._isolation.attempt(sequence, None, sequence.write)
        self.unwritten = []

    def pause(self, seconds: float) -> None:
        """Leave `seconds`, in which nothing was computed, out of the times of prompts."""
        self._timer.pause(seconds)

    def drop(self) -> None:
        """Forget all batches after a failure."""
        self.batches.clear()
        self._timer.drop()

    def _chances(self, prepared: PreparedBatch) -> list[tuple[int, ...]]:
        """Return the numbers with which the plan samples, which follow those for the batch in flight."""
        if not self._program.launches_ahead:
            return []
        later: Mapping[Sequence, int] = {}
        if self.batches:
            before = self.batches[-1].prepared
            shares = zip(before.shares, before.num_outputs, strict=True)
            later = {sequence: count for (sequence, _), count in shares}
        each = zip(prepared.shares, prepared.num_outputs, strict=True)
        chances = (sequence.chances(later.get(sequence, 0), count) for (sequence, _), count in each)
        return list(chain.from_iterable(chances))

    def _take(self, prepared: PreparedBatch, outputs: OutputRows, top_logits: F32) -> None:
        """Hand out the outputs. Sequences that have ended since the launch get none."""
        row = 0
        counts = zip(prepared.shares, prepared.num_outputs, prepared.num_top_logits, strict=True)
        for (sequence, _), count, num_top_logits in counts:
            end = row + count
            if sequence.is_running and count and sequence not in prepared.mistaken:
                rows, top = outputs.part(row, end), top_logits[row:end, :, :num_top_logits]
                self._isolation.attempt(sequence, None, self._hand_out, sequence, rows, top)
            row = end

    def _hand_out(self, sequence: Sequence, rows: OutputRows, top_logits: F32) -> None:
        num_rejected = sequence.take(rows, top_logits)
        if num_rejected:
            slot = sequence.slot
            self._prefix_cache.keep(slot, len(slot.tokens) - num_rejected, sequence.groups)


def _ignore(count: float, seconds: float) -> None:
    """Drop the measured time of a prompt: without tiers it decides nothing."""
