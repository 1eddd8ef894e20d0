"""The recurrent cache: states that every token changes, and checkpoints of them to return to.

A state is a row of every layer's storage. A batch reads the row that a sequence had and writes another one,
so nothing is ever copied: a state that is shared with other sequences, or stays as a checkpoint, is simply
held on to. Row 0 holds zeros, with which every sequence begins. A batch with the end of a prompt writes the
state before its last token, too: the same prompt continues from there when it comes again, since the logits
of its last token must be computed again. A batch with proposed tokens writes the state after each of them, so
that they can be dropped.

Layers that compute in chunks have states where a position is a multiple of the chunk, and a row for each
later token. These rows belong to one sequence and are never shared, so it can drop the last of them. A full
chunk stays open until the next token comes, so that its last token can be dropped as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from chaski.errors import NotSupportedError
from chaski.kvcache.batch import Batch
from chaski.kvcache.extents import Extent, Span
from chaski.kvcache.kinds import Recurrent, StateShape
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, KVRole, Tensor

__all__ = ["RecurrentCache", "RecurrentLayer"]

I32 = npt.NDArray[np.int32]


class _State(Struct, frozen=True):
    """The row with the state after the first `length` tokens of a sequence.

    `ends_prompt` is True for the state from which other answers to a prompt begin.
    """

    length: int
    row: int
    ends_prompt: bool = False


_EMPTY = _State(0, 0)


class _Track(Struct):
    """The states of a sequence: checkpoints, and those that the last batch read and wrote.

    `length` tokens are stored, and of those from `oldest` on their rows too, where layers keep some. `before`
    are both, and the number of tokens of the state, as the last batch found them.
    """

    recent: list[_State] = field(default_factory=lambda: [_EMPTY])
    checkpoints: list[_State] = field(default_factory=list)
    length: int = 0
    oldest: int = 0
    before: tuple[int, int, int] = (0, 0, 0)

    @property
    def state(self) -> _State:
        return self.recent[-1]

    def states(self) -> list[_State]:
        """In ascending order of length."""
        return [*self.checkpoints, *self.recent]

    def newest(self, length: int) -> _State:
        """The state that has most of the first `length` tokens, and no others."""
        return max((s for s in self.states() if s.length <= length), key=lambda s: s.length, default=_EMPTY)


class _Rows:
    """Rows held by any number of tracks; a row without holders is free. Row 0 is never handed out."""

    def __init__(self, count: int) -> None:
        self._holders = [0] * count
        self._free = list(range(count - 1, 0, -1))

    def __len__(self) -> int:
        return len(self._holders)

    def take(self) -> int:
        row = self._free.pop()
        self._holders[row] = 1
        return row

    def recount(self, states: Iterable[_State]) -> None:
        """Count all holders again: each of `states` is one."""
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
    """States of `sequences` sequences for layers that keep them at the same positions.

    A batch has the tokens of a sequence side by side, any number of each. It always finds room.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[Recurrent],
        sequences: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """`numbers` are those of the layers in the model; None for 0, 1, ..."""
        self._checkpoints = layers[0].checkpoints
        self._chunk, self._ring = layers[0].chunk, layers[0].ring
        self._num_written, self.num_droppable = layers[0].num_written, layers[0].num_droppable
        num_rows = layers[0].num_rows(sequences)

        def buffers(number: int, shapes: Sequence[StateShape], cells: int) -> tuple[KVBuffer, ...]:
            return tuple(
                backend.kv_buffer(KVRole.STATES, cells, s.heads, s.size, DType.F32, number) for s in shapes
            )

        self._layers = [
            (buffers(number, each.states, num_rows), buffers(number, each.tokens, sequences))
            for number, each in zip(numbers or range(len(layers)), layers, strict=True)
        ]
        self.rows = backend.cell_rows([buffer for states, _ in self._layers for buffer in states])
        self._rows = _Rows(num_rows)
        self._tracks = [_Track() for _ in range(sequences)]

    is_state = True
    kind = "states"

    @property
    def num_cells(self) -> int:
        """Rows of states in every layer."""
        return len(self._rows)

    def record(self, graph: Graph, tokens: Dim, prefix: str = "") -> Sequence[RecurrentLayer]:
        most = min(len(self._tracks) * self._num_written, tokens.maximum)
        columns = 7 if self._ring else 5
        segments = graph.input(f"{prefix}segments", (Dim(f"{prefix}segments", most), columns), DType.I32)
        return [RecurrentLayer(states, segments, rows) for states, rows in self._layers]

    @property
    def overwrites(self) -> bool:
        return True

    def length(self, sequence: int) -> int:
        return self._tracks[sequence].length

    def start_forward(self, batch: Batch) -> Mapping[str, I32]:
        segments: list[tuple[int, ...]] = []
        outputs, begin = set(batch.outputs.tolist()), 0
        for sequence, tokens in groupby(batch.sequences.tolist()):
            end = begin + len(list(tokens))
            track = self._tracks[sequence]
            position, source = track.length, track.state
            first = next(token for token in range(begin, end + 1) if token in outputs or token == end)
            written = self._grow(track, end - begin, first - begin)
            assert batch.positions[end - 1] == track.length - 1, f"{sequence} is not {track.length} long then"
            if self._ring:
                target = written[0].row if written else 0
                segments.append((begin, end, position, sequence, source.row, target, source.length))
            else:
                ends = [begin + state.length - position for state in written]
                parts = zip([begin, *ends], ends, written, strict=False)
                segments += ((*part, begin, source.row, state.row) for *part, state in parts)
            begin = end
        return {"segments": np.array(segments, np.int32)}

    def undo_forward(self, batch: Batch) -> None:
        for sequence, token in zip(*np.unique(batch.sequences, return_index=True), strict=True):
            track, begin = self._tracks[sequence], int(batch.positions[token])
            if track.before[0] != begin:  # other batches followed this one
                self.remove(int(sequence), begin)
                continue
            track.length, track.oldest, length = track.before
            self._rows.release([state for state in track.recent if state.length > length])
            track.recent = [state for state in track.recent if state.length <= length]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if source == target:
            self.remove(target, length)
        else:
            self.remove(target, 0)
            length = self.shareable(source, length)
            self._go_back(self._tracks[source], self._tracks[target], length, oldest=length)

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.resumable(sequence, position) == position

    def resumable(self, sequence: int, position: int) -> int:
        track = self._tracks[sequence]
        position = min(position, track.length)
        boundary = self._boundary(position)
        newest = track.newest(position).length
        return position if newest == boundary and track.oldest <= boundary else newest

    def shareable(self, sequence: int, position: int) -> int:
        return self._tracks[sequence].newest(position).length

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        length = self.length(sequence)
        if end is not None and begin < end < length:
            raise NotSupportedError(
                f"sequence {sequence}: tokens {begin} to {end} of {length} cannot be removed: the states of "
                "a recurrent layer cannot forget what others came after"
            )

    def remove(self, sequence: int, begin: int, end: int | None = None, distance: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        track = self._tracks[sequence]
        if begin < track.length and (end is None or begin < end):
            rest = _Track()
            self._go_back(track, rest, self.resumable(sequence, begin), track.oldest)
            self._rows.release(track.states())
            self._tracks[sequence] = rest

    def first_shared(self, sequence: int, begin: int) -> int:
        """States are written once and then only read, so nothing of a sequence is shared."""
        return self.length(sequence)

    def forget(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._tracks[sequence] = _Track()
        self._rows.recount(state for track in self._tracks for state in track.states())

    @property
    def leaves(self) -> Sequence[RecurrentCache]:
        return [self]

    def held(self, sequence: int, begin: int, end: int) -> Sequence[Extent]:
        """Return the newest of these states, and the last of them that ended a prompt."""
        found = [state for state in self._tracks[sequence].states() if begin < state.length <= end]
        prompts = [state for state in found if state.ends_prompt]
        return [
            Extent(state.length, state.length, np.array([state.row], np.int32), state.ends_prompt)
            for state in found
            if state in (found[-1], *prompts[-1:])
        ]

    def restorable(self, spans: Sequence[Span], start: int, length: int) -> int:
        return max((end for _, end in spans if start < end <= length), default=start)

    def adopt(self, sequence: int, length: int, first_image: int | None = None) -> Extent | None:
        track = self._tracks[sequence]
        kept = [state for state in track.checkpoints if state.length < length]
        self._rows.release([state for state in track.states() if state not in kept])
        state = _State(length, self._rows.take())
        self._tracks[sequence] = _Track([state], kept, length, length)
        return Extent(length, length, np.array([state.row], np.int32))

    def close(self) -> None:
        self._layers = []

    def _boundary(self, length: int) -> int:
        """Return the position of the last state among the first `length` tokens."""
        if not self._ring or not length:
            return length
        return length - 1 - (length - 1) % self._chunk

    def _grow(self, track: _Track, count: int, first: int) -> Sequence[_State]:
        """Add `count` tokens, `first` of them before the first output, and return the states they create.

        There is one at the last boundary if they pass it. Where a state is all that is left of tokens, there
        is one after each token from the first one with an output on, as long as rows are left; and one before
        it, where a prompt ends.
        """
        track.before = track.length, track.oldest, track.state.length
        position, ends_prompt = track.length, 0 < first < count
        track.length += count
        track.oldest = max(track.oldest, track.length - self._ring)
        boundary = self._boundary(track.length)
        if boundary == track.state.length:
            if ends_prompt and boundary:
                track.recent[-1] = replace(track.state, ends_prompt=True)
            return []
        lengths = [boundary]
        if not self._ring:
            earlier = range(position + max(first, 1), boundary)
            lengths = [*earlier[: self._num_written - 1], boundary]
        self._retire(track, self._num_written + 1 - len(lengths))
        written = [
            _State(length, self._rows.take(), ends_prompt and number == 0)
            for number, length in enumerate(lengths)
        ]
        track.recent += written
        return written

    def _go_back(self, source: _Track, target: _Track, length: int, oldest: int) -> None:
        """Give the empty `target` the first `length` tokens of `source`, with rows from `oldest` on."""
        newest = source.newest(length)
        target.length, target.oldest = length, min(oldest, length)
        target.checkpoints = [state for state in source.checkpoints if state.length < newest.length]
        target.recent = [*(state for state in source.recent if state.length < newest.length), newest]
        self._rows.hold(target.states())

    def _retire(self, track: _Track, most: int) -> None:
        """Make checkpoints of all recent states but the newest `most`, or release them.

        If there are too many, the oldest is released, but never the end of the last prompt: the next sequence
        begins there, unless it continues after the answer.
        """
        policy, kept = self._checkpoints, track.checkpoints
        older, track.recent = track.recent[:-most], track.recent[-most:]
        for state in older:
            is_due = policy.is_due(state.length, kept[-1].length if kept else None)
            if policy.count and (state.ends_prompt or is_due):
                kept.append(state)
            else:
                self._rows.release([state])
            if len(kept) > policy.count:
                last_prompt = next((s for s in reversed(kept) if s.ends_prompt), None)
                oldest = next(s for s in kept if s is not last_prompt)
                kept.remove(oldest)
                self._rows.release([oldest])


class RecurrentLayer(Struct, frozen=True):
    """One layer's interface of the cache, while a graph is recorded: what operations on states ask for.

    `states` and `rows` are the layer's, in the order in which it declared them. `segments` (n, 5) int32 has
    for each state that the batch writes: the tokens from begin to end, the first of the sequence's tokens in
    the batch, the row to read, the row to write. A sequence has one or two, side by side.
    For layers that compute in chunks it is (sequences, 7): begin, end, the position of the first token, the
    sequence's cell of `rows`, the row to read, the row to write, which is 0 where they pass no boundary, and
    the boundary of the state to read.
    """

    states: tuple[KVBuffer, ...]
    segments: Tensor
    rows: tuple[KVBuffer, ...] = ()
