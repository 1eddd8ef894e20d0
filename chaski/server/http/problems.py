"""HTTP reports of errors: a status and a text, by the class of the error."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chaski import errors
from chaski.errors import BusyError, ChaskiError, ContextLengthError, OptionError
from chaski.server.answering.answers import AnswerExistsError
from chaski.server.network.arrivals import SlowBodyError
from chaski.server.network.budget import TooLargeError

__all__ = ["Problem", "ThreadError", "problem_of"]

_log = logging.getLogger(__name__)

# The first matching class counts.
_STATUSES: tuple[tuple[type[ChaskiError], int], ...] = (
    (errors.ModelNotFoundError, 404),
    (errors.AdapterNotFoundError, 404),
    (errors.ResponseNotFoundError, 404),
    (errors.FileNotKnownError, 404),
    (errors.BusyError, 503),
    (errors.ClosedError, 503),
    (SlowBodyError, 408),
    (TooLargeError, 413),
    (AnswerExistsError, 409),
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
_UNLOADED = (
    "the model was unloaded before this was answered: the server ends, or its models change; ask again"
)
# A path would reveal the folders of this disk. Its last part is enough to identify the file.
_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/:'\"]+/)+")


class Problem(Struct, frozen=True):
    """The report of an error.

    retry_after  seconds after which the client may try again
    excess       error of a prompt that is too long
    details      machine-readable details in Anthropic's form
    """

    status: int
    message: str
    retry_after: int | None = None
    excess: ContextLengthError | None = None
    details: Mapping[str, Any] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class ThreadError(OptionError):
    """A thread cannot continue. Anthropic's packages react to `details`, usually by sending all messages."""

    def __init__(self, message: str, error_code: str, status: int = 400, **details: object) -> None:
        super().__init__(message)
        self.status = status
        self.details: Mapping[str, Any] = {"error_code": error_code, **details}


def problem_of(error: Exception) -> Problem:
    """Return the report of an error.

    An error other than ChaskiError is a defect: its trace goes to the log, and clients see nothing of it.
    """
    if not isinstance(error, ChaskiError):
        _log.error("a request failed", exc_info=error)
        return Problem(500, "internal server error")
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    text = _FOLDERS.sub("", str(error))
    if isinstance(error, ThreadError):
        return Problem(error.status, text, details=error.details)
    if isinstance(error, errors.ClosedError):
        return Problem(status, _UNLOADED, retry_after=BusyError.retry_after)
    if isinstance(error, errors.WorkerError):
        text = _CRASHED + text
    return Problem(
        status,
        text,
        retry_after=error.retry_after if isinstance(error, BusyError) else None,
        excess=error if isinstance(error, ContextLengthError) else None,
    )
