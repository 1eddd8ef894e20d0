"""One request on its way through the engine: its tokens so far, and what its reader has not read yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chaski.errors import ChaskiError
from chaski.runner.events import Done, DoneReason, Event
from chaski.runner.slots import Slot
from chaski.runner.stream import Piece, PieceStream
from chaski.sample import Sampled, Sampler, SamplingOptions

__all__ = ["Decoder", "Request", "Sequence", "Shift"]


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

    @property
    def dropped(self) -> range:
        """The positions that are dropped."""
        return range(self.num_keep, self.num_keep + max((self.context - self.num_keep) // 2, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compute, and when to end.

    limit           tokens of the sequence, its prompt included, at which it ends
    shift           what happens when it fills its context before that; None when it cannot
    end_ids         tokens that end it
    decoder         makes the text; None when nobody reads it
    dropped_tokens  how many tokens the prompt lost to fit into the context
    load_seconds    how long the model took to load, for the report at the end
    """

    prompt: Items[int]
    limit: int
    shift: Shift | None = None
    sampling: SamplingOptions
    end_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    decoder: Decoder | None = None
    dropped_tokens: int = 0
    load_seconds: float = 0.0


class Sequence:
    """Grows by one token whenever the engine has logits for it, and queues events for its reader.

    `events` ends with `Done`, or with the error that ended the sequence.
    """

    __slots__ = (
        "_cached",
        "_decoder",
        "_pieces",
        "_prefilled",
        "_request",
        "_sampler",
        "_shifted",
        "_started",
        "events",
        "is_finished",
        "slot",
        "tokens",
    )

    slot: Slot

    def __init__(self, request: Request) -> None:
        self.tokens = list(request.prompt)
        self.events: deque[Event | ChaskiError] = deque()
        self.is_finished = False
        self._request = request
        self._sampler = Sampler(request.sampling)
        self._sampler.accept_many(self.tokens)
        self._decoder = request.decoder
        self._pieces = PieceStream(request.stop)
        self._cached = self._shifted = 0
        self._started = self._prefilled = 0.0

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not computed yet."""
        return len(self.tokens) - len(self.slot.tokens)

    @property
    def full_context(self) -> Shift | None:
        """What has to be dropped before the next token can be computed, if anything has to."""
        shift = self._request.shift
        return shift if shift is not None and len(self.slot.tokens) >= shift.context else None

    def drop(self, positions: range) -> None:
        """Go on without the tokens at `positions`, as if they had never been."""
        del self.tokens[positions.start : positions.stop]
        self._shifted += len(positions)

    def start(self, slot: Slot) -> None:
        """Take a slot, with what it holds of the prompt already."""
        self.slot = slot
        self._cached = len(slot.tokens)
        self._started = perf_counter()

    def advance(self, logits: npt.NDArray[np.float32]) -> None:
        """Sample the token after the last one; `logits` (vocab_size,) are those of the last one."""
        if not self._prefilled:
            self._prefilled = perf_counter()
        if self._length >= self._request.limit:
            self._finish("length")
            return
        try:
            self._accept(self._sampler.sample(logits))
        except ChaskiError as error:
            self.events.append(error)
            self.is_finished = True

    def cancel(self) -> None:
        """The reader left: the engine drops the sequence when it looks at it next."""
        self.is_finished = True

    @property
    def _length(self) -> int:
        """All tokens of the prompt and the answer, those that were dropped on the way included."""
        return len(self.tokens) + self._shifted

    def _accept(self, sampled: Sampled) -> None:
        token_id = sampled.token_id
        self.tokens.append(token_id)
        self._sampler.accept(token_id)
        if token_id in self._request.end_ids or (self._decoder is not None and self._write(sampled)):
            self._finish("stop")
        elif self._length >= self._request.limit:
            self._finish("length")

    def _write(self, sampled: Sampled) -> bool:
        """Queue the text of a token; whether a stop string ended it."""
        assert self._decoder is not None
        event, is_stopped = self._pieces.feed(Piece(self._decoder.feed(sampled.token_id), sampled))
        if event is not None:
            self.events.append(event)
        return is_stopped

    def _finish(self, reason: DoneReason) -> None:
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
        # Only now: a reader in another thread must find the last event when it sees the end.
        self.is_finished = True
