"""Errors as HTTP reports them: a status and a text, found by the class of the error."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chaski import errors
from chaski.errors import BusyError, ChaskiError, ContextLengthError, OptionError
from chaski.server.network.arrivals import SlowBodyError
from chaski.server.network.budget import TooLargeError

__all__ = ["Problem", "ThreadError", "problem_of"]

_log = logging.getLogger(__name__)

# The first class that fits counts.
_STATUSES: tuple[tuple[type[ChaskiError], int], ...] = (
    (errors.ModelNotFoundError, 404),
    (errors.AdapterNotFoundError, 404),
    (errors.ResponseNotFoundError, 404),
    (errors.FileNotKnownError, 404),
    (errors.BusyError, 503),
    (SlowBodyError, 408),
    (TooLargeError, 413),
    (errors.OptionError, 400),
    (errors.SamplingError, 400),
    (errors.UnsupportedError, 400),
    (errors.FormatError, 400),
    (errors.AdapterError, 400),
    (errors.StateError, 400),
    (errors.DigestError, 400),
    (errors.ImageError, 400),
    (ChaskiError, 500),
)
_CRASHED = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check the server's log for details: "
)
# A path says what else is on this disk; its last part is enough to know the file.
_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/:'\"]+/)+")


class Problem(Struct, frozen=True):
    """An error as it is reported.

    retry_after  seconds after which it may help to ask again
    excess       of a prompt that is too long: how many tokens it has, and how many there may be
    details      what programs read of it, in Anthropic's form
    """

    status: int
    message: str
    retry_after: int | None = None
    excess: tuple[int, int] | None = None
    details: Mapping[str, Any] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class ThreadError(OptionError):
    """A thread that cannot go on. Anthropic's packages act on `details`, mostly by sending all again."""

    def __init__(self, message: str, error_code: str, status: int = 400, **details: object) -> None:
        super().__init__(message)
        self.status = status
        self.details: Mapping[str, Any] = {"error_code": error_code, **details}


def problem_of(error: Exception) -> Problem:
    """Return the report of an error. One that is not ours is a defect, and its trace goes to the log only."""
    if not isinstance(error, ChaskiError):
        _log.error("a request failed", exc_info=error)
        return Problem(500, "internal server error")
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    text = _FOLDERS.sub("", str(error))
    if isinstance(error, ThreadError):
        return Problem(error.status, text, details=error.details)
    if isinstance(error, errors.WorkerError):
        text = _CRASHED + text
    return Problem(
        status,
        text,
        retry_after=error.retry_after if isinstance(error, BusyError) else None,
        excess=(error.length, error.limit) if isinstance(error, ContextLengthError) else None,
    )
