"""One request for text on its way through the engine: it grows by a token at a time."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chaski.errors import ChaskiError
from chaski.runner.events import Done, DoneReason
from chaski.runner.groups import Groups, not_inside, outside, without
from chaski.runner.sequence import Sequence
from chaski.runner.slots import Slot
from chaski.runner.stream import Piece, PieceStream
from chaski.sample import Sampled, Sampler, SamplingOptions

__all__ = ["Decoder", "Generation", "Request", "Shift"]


class Decoder(Protocol):
    """Token ids to text, one at a time."""

    def feed(self, token_id: int) -> str:
        """The text that a token completes."""

    def flush(self) -> str:
        """What is left of the text at its end."""


@dataclass(frozen=True, slots=True)
class Shift:
    """What happens when a sequence fills its context: `num_keep` tokens stay, half of the rest goes."""

    context: int
    num_keep: int

    def dropped(self, groups: Groups = ()) -> range:
        """The positions that are dropped: no group in part, but one that begins in what stays goes whole."""
        begin = not_inside(self.num_keep, groups)
        return range(begin, outside(self.num_keep + max((self.context - self.num_keep) // 2, 1), groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compute, and when to end.

    groups          positions of the prompt that are computed together
    limit           tokens of the sequence, its prompt included, at which it ends
    shift           what happens when it fills its context before that; None when it cannot
    end_ids         tokens that end it
    decoder         makes the text; None when nobody reads it
    dropped_tokens  how many tokens the prompt lost to fit into the context
    load_seconds    how long the model took to load, for the report at the end
    """

    prompt: Items[int]
    groups: Groups = ()
    limit: int
    shift: Shift | None = None
    sampling: SamplingOptions
    end_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    decoder: Decoder | None = None
    dropped_tokens: int = 0
    load_seconds: float = 0.0


class Generation(Sequence):
    """A prompt and its answer. Its events are pieces of the text, and `Done`."""

    __slots__ = (
        "_cached",
        "_decoder",
        "_end",
        "_pieces",
        "_prefilled",
        "_request",
        "_sampled",
        "_sampler",
        "_shifted",
        "_started",
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request.prompt, request.groups)
        self._request = request
        self._sampler = Sampler(request.sampling)
        self._sampler.accept_many(self.tokens)
        self._decoder = request.decoder
        self._pieces = PieceStream(request.stop)
        self._sampled: list[Sampled] = []  # not written yet
        self._end: DoneReason | ChaskiError | None = None  # why it ended, not written yet
        self._cached = self._shifted = 0
        self._started = self._prefilled = 0.0

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self._cached = len(slot.tokens)
        self._started = perf_counter()

    @property
    def num_pending(self) -> int:
        """With nothing left, the token to come from the last one's logits, if that is not the end."""
        known = len(self.tokens) - len(self.slot.tokens)
        return known or int(self._length + 1 < self._request.limit)

    def outputs(self, begin: int, count: int) -> range:
        """The logits of the last token that is known."""
        end = begin + count
        return range(end - 1 if end >= len(self.tokens) else end, end)

    @property
    def full_context(self) -> range | None:
        shift = self._request.shift
        is_full = shift is not None and len(self.slot.tokens) >= shift.context
        return shift.dropped(self.groups) if shift is not None and is_full else None

    def drop(self, positions: range) -> None:
        del self.tokens[positions.start : positions.stop]
        self.groups = without(positions, self.groups)
        self._shifted += len(positions)

    def take(self, rows: npt.NDArray[np.float32]) -> None:
        """Sample the token after the last one."""
        if not self._prefilled:
            self._prefilled = perf_counter()
        if self._length >= self._request.limit:
            self._stop("length")
            return
        try:
            sampled = self._sampler.sample(rows[0])
        except ChaskiError as error:
            self._stop(error)
            return
        self.tokens.append(sampled.token_id)
        self._sampler.accept(sampled.token_id)
        self._sampled.append(sampled)
        if sampled.token_id in self._request.end_ids:
            self._stop("stop")
        elif self._length >= self._request.limit:
            self._stop("length")

    def write(self) -> None:
        sampled, self._sampled = self._sampled, []
        for one in sampled:
            if one.token_id not in self._request.end_ids and self._pieces.stop_string is None:
                self._write(one)
        if self._end is not None:
            reason, self._end = self._end, None
            self._finish(reason)

    @property
    def _length(self) -> int:
        """All tokens of the prompt and the answer, those that were dropped on the way included."""
        return len(self.tokens) + self._shifted

    def _stop(self, reason: DoneReason | ChaskiError) -> None:
        self.is_running = False
        self._end = reason

    def _write(self, sampled: Sampled) -> None:
        """Queue the text of a token, and end with it if a stop string does."""
        if self._decoder is None:
            return
        event, is_stopped = self._pieces.feed(Piece(self._decoder.feed(sampled.token_id), sampled))
        if event is not None:
            self.events.append(event)
        if is_stopped:
            self._stop("stop")

    def _finish(self, reason: DoneReason | ChaskiError) -> None:
        if isinstance(reason, ChaskiError):
            self.events.append(reason)
            return
        if self._decoder is not None and self._pieces.stop_string is None:
            event = self._pieces.flush(self._decoder.flush())
            if event is not None:
                self.events.append(event)
        stop_string = self._pieces.stop_string
        self.events.append(
            Done(
                reason=reason if stop_string is None else "stop",
                stop_string=stop_string,
                prompt_tokens=len(self._request.prompt),
                cached_tokens=self._cached,
                generated_tokens=self._length - len(self._request.prompt),
                dropped_tokens=self._request.dropped_tokens,
                shifted_tokens=self._shifted,
                load_seconds=self._request.load_seconds,
                prefill_seconds=self._prefilled - self._started,
                decode_seconds=perf_counter() - self._prefilled,
            )
        )
