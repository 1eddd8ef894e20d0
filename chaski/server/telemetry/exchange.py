"""`Exchange`: a request over HTTP, what became of it, and the records of what it asked of models."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter

from msgspec import Struct, field

from chaski.server.telemetry.record import RequestRecord

__all__ = ["CLIENT_LEFT", "EXCHANGE", "Exchange", "note_error", "note_key"]

CLIENT_LEFT = 499  # as other servers write a client that did not wait for the answer


class Exchange(Struct, eq=False):
    """A request over HTTP, from its head to the end of its answer.

    id         what the answer's header X-Request-Id says
    started    seconds of `time.perf_counter`, as `ended`, when its answer was sent or left
    sent       bytes of the body of the answer
    has_ended  the whole answer was sent
    key        the name of the key of the client, never the key; None without one
    error      the class of the error that ended it
    records    one for each job of a model, in the order in which they began
    late       is told of jobs that end after it, as those do whose client may come back; None until then
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
"""The request over HTTP that is being answered; None where there is none, as in batches."""


def note_key(name: str) -> None:
    """Note the name of the key with which the client asks."""
    if (exchange := EXCHANGE.get()) is not None:
        exchange.key = name


def note_error(error: BaseException) -> None:
    """Note the class of an error that ends the request; the first one counts."""
    if (exchange := EXCHANGE.get()) is not None and exchange.error is None:
        exchange.error = type(error).__name__
