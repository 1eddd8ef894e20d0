"""Sequences that end with their prompt: their results are the model's outputs themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from chaski.chat.groups import Groups
from chaski.chat.image_rows import Images
from chaski.chat.requests import Embed, Rank
from chaski.errors import ModelError, OptionError
from chaski.model.output_rows import OutputRows
from chaski.model.pooling import Pooling
from chaski.runner.engine.outputs import Outputs
from chaski.runner.engine.sequence import Sequence
from chaski.same_bits import exponentials

__all__ = [
    "EmbeddingSequence",
    "LogitsSequence",
    "PromptSequence",
    "StreamedLogits",
    "embeddings",
    "normalized",
    "relevance",
    "vectors_or_scores",
]

F32 = npt.NDArray[np.float32]


class LogitsSequence(Sequence):
    """The outputs of positions, in order. Ends with ModelError where one has no largest logit.

    Rows of an image that see each other are one group of a batch, and may be more than a batch has outputs.
    So `passes` makes several sequences, each with other outputs of such groups.
    """

    __slots__ = ("_rows", "_wide", "positions")

    def __init__(
        self,
        tokens: Iterable[int],
        groups: Groups = (),
        images: Images = (),
        positions: Seq[int] | None = None,
        wide: Groups = (),
    ) -> None:
        """`positions` are those with outputs, ascending; all by default.

        `wide` are groups larger than a batch's outputs.
        """
        super().__init__(tokens, groups, images)
        self.positions = range(len(self.tokens)) if positions is None else positions
        self._wide = wide
        self._rows: list[F32] = []

    @classmethod
    def passes(
        cls, tokens: list[int], groups: Groups, images: Images, max_outputs: int
    ) -> list[LogitsSequence]:
        """Return sequences that together have the outputs of all positions."""
        wide = tuple(group for group in groups if len(group) > max_outputs)
        left = {place for group in wide for place in group[max_outputs:]}
        found = [cls(tokens, groups, images, [i for i in range(len(tokens)) if i not in left], wide)]
        for begin in range(max_outputs, max(map(len, wide), default=0), max_outputs):
            reached = [group for group in wide if len(group) > begin]
            positions = [place for group in reached for place in group[begin : begin + max_outputs]]
            end = reached[-1].stop
            near = tuple(group for group in groups if group.stop <= end)
            seen = tuple(run for run in images if run.positions.stop <= end)
            found.append(cls(tokens[:end], near, seen, positions, wide))
        return found

    @property
    def can_take_over(self) -> bool:
        return False

    def share(self, max_tokens: int, max_outputs: int) -> int:
        begin = len(self.slot.tokens)
        ahead = next((group for group in self._wide if group.stop > begin), None)
        if ahead is None:
            limit = self._reach(begin, max_outputs)
        elif ahead.start > begin:
            limit = min(self._reach(begin, max_outputs), ahead.start - begin)
        else:
            limit = len(ahead)
        return super().share(min(max_tokens, limit), max_outputs)

    def _reach(self, begin: int, max_outputs: int) -> int:
        """Return the number of tokens from `begin` on that have this many outputs at most."""
        end = bisect_left(self.positions, begin) + max_outputs
        return (self.positions[end] if end < len(self.positions) else len(self.tokens)) - begin

    def outputs(self, begin: int, count: int) -> range:
        first = bisect_left(self.positions, begin)
        number = bisect_left(self.positions, begin + count) - first
        start = self.positions[first] if number else begin
        return range(start, start + number)

    def take(self, rows: OutputRows, top_logits: F32) -> int:
        self._rows.append(rows.fetch().copy())
        self.is_running = self.num_pending > 0
        return 0

    def restart(self) -> None:
        self._rows = []

    def write(self) -> None:
        if sum(map(len, self._rows)) == len(self.positions) and not self.events:
            self.events.append(Outputs(_numbers(np.concatenate(self._rows))))


class StreamedLogits(LogitsSequence):
    """The same outputs as events, one for each batch, so that no more than some batches are held."""

    __slots__ = ("_num_again", "_num_told")

    def __init__(self, tokens: Iterable[int], positions: Seq[int]) -> None:
        super().__init__(tokens, positions=positions)
        self._num_told = 0
        self._num_again = 0

    def restart(self) -> None:
        super().restart()
        self._num_again = self._num_told

    def write(self) -> None:
        for rows in self._rows:
            new = rows[self._num_again :]
            self._num_again = max(0, self._num_again - len(rows))
            if len(new):
                self._num_told += len(new)
                self.events.append(Outputs(_numbers(new)))
        self._rows = []


def _numbers(logits: F32) -> F32:
    """Return the logits (tokens, vocabulary). Raises ModelError for a row that has no largest one."""
    is_finite = np.isfinite(logits.max(axis=1))
    if not is_finite.all():
        raise ModelError(
            f"the logits of token {is_finite.argmin()} of {len(logits)}, counted from 0, are no finite "
            "numbers: the model computes beyond float32 for it, or its file is damaged"
        )
    return logits


class PromptSequence(Sequence):
    """A prompt that is computed only to fill the cache; its outputs have no rows."""

    __slots__ = ()

    def outputs(self, begin: int, count: int) -> range:
        end = begin + count
        return range(min(max(begin, len(self.tokens) - 1), end), end)

    def take(self, rows: OutputRows, top_logits: F32) -> int:
        self.is_running = False
        return 0

    def write(self) -> None:
        if not self.is_running and not self.events:
            self.events.append(Outputs(np.zeros((0, 0), np.float32)))


class EmbeddingSequence(Sequence):
    """One vector for a text, made of the outputs of its positions.

    Outputs are added up one after the other, so a mean does not depend on how a text was cut into batches.
    """

    __slots__ = ("_left", "_pooling", "_second", "_sum")

    def __init__(
        self, tokens: Iterable[int], pooling: Pooling, groups: Groups = (), second: int | None = None
    ) -> None:
        super().__init__(tokens, groups)
        self._second = second
        self._pooling = pooling
        self._left = len(pooling.positions(len(self.tokens)))
        self._sum: F32 | None = None

    @property
    def second_text(self) -> int | None:
        return self._second

    @property
    def can_take_over(self) -> bool:
        return False

    def share(self, max_tokens: int, max_outputs: int) -> int:
        limit = min(max_tokens, max_outputs) if self._pooling is Pooling.MEAN else max_tokens
        return super().share(limit, max_outputs)

    def outputs(self, begin: int, count: int) -> range:
        wanted = self._pooling.positions(len(self.tokens))
        return range(max(begin, wanted.start), max(begin, min(begin + count, wanted.stop)))

    def take(self, rows: OutputRows, top_logits: F32) -> int:
        for row in rows.fetch():
            self._sum = row.copy() if self._sum is None else self._sum + row
        self._left -= len(rows)
        self.is_running = self._left > 0
        return 0

    def restart(self) -> None:
        self._left = len(self._pooling.positions(len(self.tokens)))
        self._sum = None

    def write(self) -> None:
        if self._sum is not None and self._left == 0 and not self.events:
            count = len(self._pooling.positions(len(self.tokens)))
            self.events.append(Outputs(self._sum[None] / np.float32(count)))


def embeddings(vectors: F32, call: Embed | Rank) -> F32:
    """The model's vectors of some texts, one row each: of length 1, and cut, if the call asks for it.

    Raises OptionError for more dimensions than there are, and ModelError for a row with a number that is not
    finite: it could not be compared with any other.
    """
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        raise ModelError(
            f"the embedding of text {is_finite.argmin()} of {len(vectors)}, counted from 0, has values that "
            "are no finite numbers: the model computes beyond float32 for it, or its file is damaged"
        )
    if isinstance(call, Rank):
        return vectors
    rows = normalized(vectors) if call.normalize else vectors
    return _cut(rows, call.dimensions, call.normalize)


def _cut(rows: F32, dimensions: int | None, normalize: bool) -> F32:
    """Return the first `dimensions` elements of each row; all of them for None and 0."""
    size = rows.shape[-1]
    if not dimensions or dimensions == size:
        return rows
    if dimensions > size:
        raise OptionError(f"dimensions is {dimensions}, but the vectors of this model have {size} elements")
    return normalized(rows[:, :dimensions]) if normalize else rows[:, :dimensions]


def normalized(vectors: F32) -> F32:
    """Rows of length 1, in the same directions; one of zeros has none and stays."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():  # squares of large numbers
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: F32 = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return unit


def relevance(outputs: F32) -> F32:
    """Return the relevance of each text, 0 to 1, from a ranking model's outputs (texts, labels).

    The first label means yes: its share of all, or where it is the only one, its own against 0.
    """
    outputs = outputs if outputs.shape[1] > 1 else np.pad(outputs, ((0, 0), (0, 1)))
    shares: F32 = np.stack([exponentials(row, float(row.max())) for row in outputs])
    first: F32 = shares[:, 0] / shares.sum(axis=1)
    return first


def vectors_or_scores(call: Embed | Rank, rows: F32) -> F32:
    """Return the vectors of texts as they are, and the relevance of documents (documents,)."""
    return relevance(rows) if isinstance(call, Rank) else rows
