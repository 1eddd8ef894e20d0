"""`Recorder`: fill the records of requests as their events arrive, and pass the records on."""

from __future__ import annotations

from time import perf_counter

from chaski.chat.events import Done, Event, PromptScores, PromptTokens
from chaski.server.telemetry.exchange import EXCHANGE
from chaski.server.telemetry.metrics import Metrics
from chaski.server.telemetry.record import Ending, Operation, RequestRecord

__all__ = ["Recorder"]

_ENDINGS: dict[str, Ending] = {"stop": "stop", "length": "length", "cancelled": "abort"}


class Recorder:
    """Recorder of what happens to requests. Use it in one event loop only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def begin(
        self, model: str, operation: Operation, arrived: float, max_tokens: int | None
    ) -> RequestRecord:
        """Return a new record, and add it to the current HTTP request if there is one."""
        record = RequestRecord(model, operation, arrived, max_tokens=max_tokens)
        if (exchange := EXCHANGE.get()) is not None:
            exchange.records.append(record)
        return record

    def loaded(self, record: RequestRecord) -> None:
        """Record that the model of a request is in memory."""
        record.loaded = perf_counter()

    def note(self, record: RequestRecord, event: Event) -> None:
        """Record an event of the answer to a request."""
        match event:
            case Done():
                record.ended = perf_counter()
                record.done = event
            case PromptTokens():
                record.prompt_tokens = event.count
            case PromptScores():
                pass
            case _ if event.token_ids:
                self._advance(record, len(event.token_ids))

    def end(self, record: RequestRecord, error: BaseException | None) -> None:
        """Record the end of a request: by its last event, an error, or the disconnection of its client."""
        if record.ended is None:
            record.ended = perf_counter()
        if record.done is not None:
            record.ending = _ENDINGS[record.done.reason]
        elif error is not None:
            record.ending = "error" if isinstance(error, Exception) else "abort"
            record.error = type(error).__name__ if isinstance(error, Exception) else None
        record.is_over = True
        self._metrics.count(record)
        if (exchange := EXCHANGE.get()) is not None and exchange.late is not None:
            exchange.late(record)

    def _advance(self, record: RequestRecord, count: int) -> None:
        now = perf_counter()
        gap = None if record.latest is None else now - record.latest
        if record.first is None:
            record.first = now
        record.latest = now
        record.generated_tokens += count
        self._metrics.advance(record.model, count, gap)
