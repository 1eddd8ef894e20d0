"""`Exchange`: an HTTP request, its outcome, and the records of its jobs for models."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter

from msgspec import Struct, field

from chaski.server.telemetry.record import RequestRecord

__all__ = ["CLIENT_LEFT", "EXCHANGE", "Exchange", "note_error", "note_key"]

CLIENT_LEFT = 499  # the status that other servers log, too, if the client disconnects before the answer


class Exchange(Struct, eq=False):
    """An HTTP request, from its head to the end of its answer.

    id         value of the answer's header X-Request-Id
    started    time of its start, in seconds of `time.perf_counter`
    ended      time at which its answer was sent or abandoned, on the same clock
    sent       number of bytes sent of the answer's body
    has_ended  whether the whole answer was sent
    key        name of the client's key, never the key itself; None without a key
    error      class of the error that ended it
    records    one record for each job of a model, in the order of their start
    late       function that is called for jobs that end after it, since their client may reconnect; None
               until it ends
    """

    id: str
    started: float = field(default_factory=perf_counter)
    ended: float = 0.0
    status: int = CLIENT_LEFT
    sent: int = 0
    has_ended: bool = False
    key: str | None = None
    error: str | None = None
    records: list[RequestRecord] = field(default_factory=list)
    late: Callable[[RequestRecord], None] | None = None


EXCHANGE: ContextVar[Exchange | None] = ContextVar("EXCHANGE", default=None)
"""The HTTP request that is being answered; None if there is none, as in batches."""


def note_key(name: str) -> None:
    """Record the name of the client's key."""
    if (exchange := EXCHANGE.get()) is not None:
        exchange.key = name


def note_error(error: BaseException) -> None:
    """Record the class of an error that ends the request. Only the first error counts."""
    if (exchange := EXCHANGE.get()) is not None and exchange.error is None:
        exchange.error = type(error).__name__
