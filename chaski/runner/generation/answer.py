"""The common part of answers of all kinds: the way from tokens to events, and the end."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from chaski.chat.events import Done, DoneReason
from chaski.errors import ChaskiError
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.request import GenerationRequest
from chaski.runner.generation.stream import PieceStream, TokenText
from chaski.runner.prefix.slots import Slot
from chaski.sample import Sampled

__all__ = ["Answer"]


class Answer(Sequence):
    """A sequence that answers a request. Its events are pieces of the text, and `Done`."""

    __slots__ = ("_decoder", "_end", "_pieces", "_prefilled", "_request", "_started")

    def _open(self, request: GenerationRequest) -> None:
        """Begin an answer to `request`."""
        self.adapters = request.adapters
        self._request = request
        self._decoder = request.decoder
        self._pieces = PieceStream(request.stop, request.keeps_stop)
        self._end: DoneReason | ChaskiError | None = None  # why it ended, not written yet
        self._started = self._prefilled = 0.0

    def start(self, slot: Slot) -> None:
        super().start(slot)
        self._started = perf_counter() - self.restored.seconds

    def fail(self, error: ChaskiError) -> None:
        self._end = None
        super().fail(error)

    def _stop(self, reason: DoneReason | ChaskiError) -> None:
        self.is_running = False
        self._end = reason

    def _write(self, sampled: Sampled, may_stop: bool = True) -> None:
        """Queue the text of a token, and end with it if a stop string does."""
        token = sampled.token_id
        if token in self._request.end_ids and token not in self._request.shown_ends:
            return
        if self._decoder is None:
            return
        event, is_stopped = self._pieces.feed(TokenText(self._decoder.feed(token), sampled), may_stop)
        if event is not None:
            self.events.append(event)
        if is_stopped:
            self._stop("stop")

    def _write_end(self, **figures: Any) -> None:
        """Queue the end, if there is one. `figures`: fields of `Done` that depend on the answer."""
        reason, self._end = self._end, None
        if reason is None:
            return
        if isinstance(reason, ChaskiError):
            self.events.append(reason)
            return
        stop_string = self._pieces.stop_string
        if self._decoder is not None and stop_string is None:
            event = self._pieces.flush(self._decoder.flush())
            if event is not None:
                self.events.append(event)
            stop_string = self._pieces.stop_string
        reason = reason if stop_string is None else "stop"
        times = self._started, self._prefilled
        done = self._request.report(self, times, reason=reason, stop_string=stop_string, **figures)
        self.events.append(self._with_receipt(done))

    def _with_receipt(self, done: Done) -> Done:
        """Return the end of the answer with its receipt, if it gets one."""
        return done
