"""A program that continues counting, as the model of an engine, and requests to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.chat.events import Done
from chaski.errors import NotSupportedError
from chaski.kvcache.batch import Batch
from chaski.model.output_rows import OutputRows
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.request import GenerationRequest
from chaski.runner.prefix.slots import Policy
from chaski.sample import SamplingOptions

VOCAB = 1000
NAN_TOKEN = 666
UNKNOWN = -1


class Dropped:
    """Replaces a launch whose outputs must not be fetched."""

    def wait(self) -> None:
        """Do nothing, since a launch computes everything."""

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        raise AssertionError(f"{output} was dropped")

    def drop(self, output: str) -> None:
        """Note that the launch is dropped."""


class Computed:
    """Replaces a launch with these logits."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._logits = logits

    def wait(self) -> None:
        """Do nothing, since a launch computes everything."""

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        assert output == "outputs"
        return self._logits[begin:end]

    def drop(self, output: str) -> None:
        """Do nothing, since no data are kept."""


class CountedRun:
    """Replaces `Run`: the next number follows each number."""

    def __init__(self, program: CountingProgram, batch: Batch) -> None:
        self._program = program
        self._batch = batch
        self._is_dropped = False

    def drop_outputs(self) -> None:
        self._is_dropped = True

    def with_samples(
        self, tokens: NDArray[np.int32], places: list[int], rows: list[int]
    ) -> NDArray[np.int32]:
        self._program.calls.append("ahead")
        found = tokens.copy()
        found[list(places)] = (self._batch.tokens[self._batch.outputs] + 1)[list(rows)] % VOCAB
        return found

    def samples(self) -> NDArray[np.float32]:
        return self.top_logits()[:, 1, 0]

    def outputs(self) -> OutputRows:
        if self._is_dropped:
            return OutputRows(Dropped(), 0, len(self._batch.outputs), VOCAB)
        self._program.calls.append("outputs")
        batch = self._batch
        logits = np.zeros((len(batch.outputs), VOCAB), np.float32)
        after = (batch.tokens[batch.outputs] + 1) % VOCAB
        logits[np.arange(len(after)), after] = 1
        logits[batch.tokens[batch.outputs] == NAN_TOKEN] = np.nan
        return OutputRows(Computed(logits), 0, len(logits), VOCAB)

    def top_logits(self) -> NDArray[np.float32]:
        """Return the next number first if batches are launched ahead; else leave it to samplers."""
        top = np.full((len(self._batch.outputs), 2, self._program.max_top_logits), np.nan, np.float32)
        if self._program.launches_ahead:
            number = np.arange(1, 1 + self._program.max_top_logits)
            top[:, 0] = number == 1
            top[:, 1] = (self._batch.tokens[self._batch.outputs, None] + number) % VOCAB
        return top


class CountingProgram:
    """Replaces `Program` and `Cache`: it checks the engine's promises to both, and records batches."""

    def __init__(self, parallel: int, max_tokens: int = 8, max_outputs: int = 4, stages: int = 1) -> None:
        self.max_tokens = max_tokens
        self.max_outputs = max_outputs
        self.max_top_logits = 4
        self.has_coordinates = False
        self.takes_types = False
        self.stages = stages
        self.launches_ahead = False
        self.overwrites = False
        self.stored: list[list[int]] = [[] for _ in range(parallel)]
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.at_once = self.most_at_once = 0  # batches without a waiter yet
        self.fail: Callable[[], None] = lambda: None
        self.can_trim = True
        self.can_go_back = True
        self.can_move = True
        self.shared_from: int | None = None

    def prepare(self, batch: Batch) -> dict[str, Any]:
        self.calls.append("prepare")
        assert 0 < len(batch.tokens) <= self.max_tokens
        assert len(batch.outputs) <= self.max_outputs
        assert not batch.tokens.any(), "tokens are filled in later"
        for position, sequence in zip(batch.positions, batch.sequences, strict=True):
            assert position == len(self.stored[sequence])
            self.stored[sequence].append(UNKNOWN)
        return {"batch": batch, "tokens": batch.tokens}

    def undo_forward(self, batch: Batch) -> None:
        self.calls.append("undo")
        for sequence in batch.sequences:
            assert self.stored[sequence].pop() == UNKNOWN

    def launch(
        self, inputs: dict[str, Any], num_top_logits: list[int], chances: list[tuple[int, ...]]
    ) -> CountedRun:
        batch = inputs["batch"]
        batch.tokens[:] = inputs["tokens"]
        assert len(num_top_logits) == len(batch.outputs)
        assert len(chances) == (len(batch.outputs) if self.launches_ahead else 0)
        assert all(0 <= count <= self.max_top_logits for count in num_top_logits)
        self.calls.append("launch")
        self.fail()
        tokens, positions, sequences, outputs = (array.copy() for array in _arrays(batch))
        self.batches.append(Batch(tokens, positions, sequences, outputs, batch.ends))
        for token, position, sequence in zip(*_arrays(batch)[:3], strict=True):
            assert self.stored[sequence][position] == UNKNOWN
            self.stored[sequence][position] = int(token)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        return CountedRun(self, self.batches[-1])

    def wait(self, most: int = 0) -> None:
        """Record the wait; a launch computes everything."""
        self.at_once = min(self.at_once, most)
        if most:
            self.calls.append(f"wait {most}")

    @property
    def num_droppable(self) -> int:
        return sys.maxsize if self.can_go_back else 0

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        assert source != target
        self.stored[target] = self.stored[source][:length]

    def can_resume(self, sequence: int, position: int) -> bool:
        held = len(self.stored[sequence])
        return position <= held if self.can_go_back else position == held

    def forget(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.stored[sequence] = []

    def resumable(self, sequence: int, position: int) -> int:
        return position if self.can_resume(sequence, position) else 0

    def length(self, sequence: int) -> int:
        return len(self.stored[sequence])

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        if end is not None and not self.can_move:
            raise NotSupportedError("keys cannot be moved")

    def first_shared(self, sequence: int, begin: int) -> int:
        shared, self.shared_from = self.shared_from, None  # recomputed cells are not shared
        return len(self.stored[sequence]) if shared is None else shared

    def remove(self, sequence: int, begin: int, end: int | None = None, distance: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        assert end is None or begin <= end <= len(self.stored[sequence])
        if end is None and 0 < begin < len(self.stored[sequence]) and not self.can_trim:
            raise NotSupportedError("the tail cannot be removed")
        if end is None and not self.can_resume(sequence, begin):
            begin = 0
        del self.stored[sequence][begin:end]


def _arrays(batch: Batch) -> tuple[NDArray[np.int32], ...]:
    return batch.tokens, batch.positions, batch.sequences, batch.outputs


def make(
    parallel: int = 1, prompt_cache: bool = True, max_tokens: int = 8, stages: int = 1, ahead: bool = False
) -> tuple[Engine, CountingProgram]:
    program: Any = CountingProgram(parallel, max_tokens, max(4, parallel), stages)
    program.launches_ahead = ahead
    return Engine(program, program, parallel, Policy.SMALLER_LOSS if prompt_cache else None), program


GREEDY = SamplingOptions(temperature=0)


def request(
    prompt: list[int], num_predict: int = 3, sampling: SamplingOptions = GREEDY, **options: Any
) -> Generation:
    return Generation(
        GenerationRequest(prompt=prompt, limit=len(prompt) + num_predict, sampling=sampling, **options)
    )


def run(engine: Engine, sequence: Sequence) -> Done:
    engine.submit(sequence)
    return finish(engine, sequence)


def finish(engine: Engine, sequence: Sequence) -> Done:
    engine.wait(sequence)
    event = sequence.events.popleft()
    assert isinstance(event, Done)
    return event


def step(engine: Engine) -> None:
    engine._exclusive.run(engine._step)


def run_at_random(engine: Engine, waiting: list[Generation], random: Random, most: int) -> None:
    """Submit up to `most` requests between two steps, cancel some, and check that all continue counting."""
    asked: list[Generation] = []
    cancelled, told = set(), 0
    while waiting or told < len(asked):
        for _ in range(random.randrange(most + 1)):
            if waiting:
                asked.append(waiting.pop())
                engine.submit(asked[-1])
        if told < len(asked) and random.random() < 0.05:
            asked[told].cancel()
            cancelled.add(asked[told])
        if told < len(asked) and (asked[told].events or not asked[told].is_running):
            told += 1
        elif told < len(asked):
            step(engine)
    for sequence in asked:
        first = sequence.tokens[0]
        assert sequence.tokens == list(range(first, first + len(sequence.tokens)))
        assert sequence in cancelled or isinstance(sequence.events[-1], Done)
