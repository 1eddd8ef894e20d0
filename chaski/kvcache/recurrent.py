"""The recurrent cache: states that every token changes, and checkpoints of them to go back to.

A state is a row of every layer's storage. A batch reads the row that a sequence had and writes another one,
so nothing is ever copied: a state that is shared with other sequences, or stays as a checkpoint, is simply
held on to. Row 0 holds zeros, with which every sequence begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from chaski.errors import NotSupportedError
from chaski.kvcache.batch import Batch
from chaski.kvcache.kinds import Checkpoints, StateShape
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, KVRole, Tensor

__all__ = ["RecurrentCache", "RecurrentLayer"]

I32 = npt.NDArray[np.int32]

_EVERY_SO_OFTEN = Checkpoints()


@dataclass(frozen=True, slots=True)
class _State:
    """The row that holds what is left of the first `length` tokens of a sequence."""

    length: int
    row: int


_EMPTY = _State(0, 0)


@dataclass(slots=True)
class _Track:
    """The states of a sequence: the newest, the one that the last batch began with, and checkpoints."""

    state: _State = _EMPTY
    previous: _State | None = None
    checkpoints: list[_State] = field(default_factory=list)

    def states(self) -> list[_State]:
        """In ascending order of length."""
        previous = [] if self.previous is None else [self.previous]
        return [*self.checkpoints, *previous, self.state]

    def newest(self, length: int) -> _State:
        """The state that has most of the first `length` tokens, and no others."""
        return max((s for s in self.states() if s.length <= length), key=lambda s: s.length, default=_EMPTY)


class _Rows:
    """Rows that any number of tracks hold; one that nobody holds is free. Row 0 is never handed out."""

    def __init__(self, count: int) -> None:
        self._holders = [0] * count
        self._free = list(range(count - 1, 0, -1))

    def take(self) -> int:
        row = self._free.pop()
        self._holders[row] = 1
        return row

    def recount(self, states: Iterable[_State]) -> None:
        """Count all holders anew: each of `states` is one."""
        self._holders = [0] * len(self._holders)
        for state in states:
            self._holders[state.row] += 1
        self._free = [row for row in range(len(self._holders) - 1, 0, -1) if not self._holders[row]]

    def hold(self, states: Sequence[_State]) -> None:
        for state in states:
            self._holders[state.row] += 1

    def release(self, states: Sequence[_State]) -> None:
        for state in states:
            self._holders[state.row] -= 1
            if state is not _EMPTY and not self._holders[state.row]:
                self._free.append(state.row)


class RecurrentCache:
    """States of `sequences` sequences; `layers` has the shapes of the states of each layer.

    A batch has the tokens of a sequence side by side, any number of each. It always finds room.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[Sequence[StateShape]],
        sequences: int,
        checkpoints: Checkpoints = _EVERY_SO_OFTEN,
    ) -> None:
        self._checkpoints = checkpoints
        num_rows = checkpoints.num_rows(sequences)
        self._layers = [
            tuple(
                backend.kv_buffer(KVRole.STATES, num_rows, shape.heads, shape.size, DType.F32)
                for shape in shapes
            )
            for shapes in layers
        ]
        self._rows = _Rows(num_rows)
        self._tracks = [_Track() for _ in range(sequences)]

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[RecurrentLayer]:
        most = min(len(self._tracks), tokens.maximum)
        segments = graph.input(f"{prefix}segments", (Dim(f"{prefix}segments", most), 4), DType.I32)
        return [RecurrentLayer(states, segments) for states in self._layers]

    @property
    def can_step_back(self) -> bool:
        return False

    def length(self, sequence: int) -> int:
        return self._tracks[sequence].state.length

    def start_forward(self, batch: Batch) -> Mapping[str, I32]:
        segments: list[int] = []
        begin = 0
        for sequence, tokens in groupby(batch.sequences.tolist()):
            end = begin + len(list(tokens))
            track = self._tracks[sequence]
            length = track.state.length + end - begin
            assert batch.positions[end - 1] == length - 1, f"sequence {sequence} is not {length} long then"
            self._retire(track)
            track.previous, track.state = track.state, _State(length, self._rows.take())
            segments += (begin, end, track.previous.row, track.state.row)
            begin = end
        return {"segments": np.array(segments, np.int32).reshape(-1, 4)}

    def undo_forward(self, batch: Batch) -> None:
        for sequence in np.unique(batch.sequences).tolist():
            track = self._tracks[sequence]
            assert track.previous is not None
            self._rows.release([track.state])
            track.state, track.previous = track.previous, None

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if source == target:
            self.remove(target, length)
        else:
            self.remove(target, 0)
            self._go_back(self._tracks[source], self._tracks[target], length)

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.resumable(sequence, position) == position

    def resumable(self, sequence: int, position: int) -> int:
        return self._tracks[sequence].newest(position).length

    def shareable(self, sequence: int, position: int) -> int:
        return self.resumable(sequence, position)

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        length = self.length(sequence)
        if end is not None and begin < end < length:
            raise NotSupportedError(
                f"sequence {sequence}: tokens {begin} to {end} of {length} cannot be removed: the states of "
                "a recurrent layer cannot forget what others came after"
            )

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        track = self._tracks[sequence]
        if begin < track.state.length and (end is None or begin < end):
            rest = _Track()
            self._go_back(track, rest, begin)
            self._rows.release(track.states())
            self._tracks[sequence] = rest

    def first_shared(self, sequence: int, begin: int) -> int:
        """States are written once and read by whoever holds them, so nothing of a sequence is shared."""
        return self.length(sequence)

    def forget(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._tracks[sequence] = _Track()
        self._rows.recount(state for track in self._tracks for state in track.states())

    def close(self) -> None:
        self._layers = []

    def _go_back(self, source: _Track, target: _Track, length: int) -> None:
        """Give the empty `target` what `source` has of its first `length` tokens."""
        target.state = source.newest(length)
        target.checkpoints = [state for state in source.checkpoints if state.length < target.state.length]
        self._rows.hold(target.states())

    def _retire(self, track: _Track) -> None:
        """Make the previous state a checkpoint, or let go of it."""
        state, kept = track.previous, track.checkpoints
        if state is None:
            return
        if self._checkpoints.is_due(state.length, kept[-1].length if kept else None):
            kept.append(state)
            self._rows.release(kept[: -self._checkpoints.count])
            del kept[: -self._checkpoints.count]
        else:
            self._rows.release([state])


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """One layer's face of the cache, while a graph is recorded: what operations on states ask for.

    `states` are the layer's, in the order in which it declared them. `segments` (sequences, 4) int32 has for
    each sequence of the batch: its tokens from begin to end, the row to read, the row to write.
    """

    states: tuple[KVBuffer, ...]
    segments: Tensor
