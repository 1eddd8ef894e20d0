"""Processes that do the work of one request: their commands, errors and exit statuses."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from chaski.errors import ChaskiError, WorkerError, class_name, error_class

__all__ = ["command", "failure", "raise_failure", "reason"]


def command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module as a program."""
    return sys.executable, "-P", "-m", module


def failure(error: Exception, what: str) -> dict[str, str]:
    """Return the JSON form of an error. `what` names the work that failed.

    An error other than ChaskiError is a defect: its trace goes to the log, and clients see nothing of it.
    """
    if isinstance(error, ChaskiError):
        return {"kind": class_name(error), "error": str(error)}
    traceback.print_exception(error)
    return {"kind": WorkerError.__name__, "error": f"{what} failed; see the server's log"}


def raise_failure(answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer contains, if any."""
    if "error" in answer:
        raise error_class(answer["kind"])(answer["error"])


def reason(status: int) -> str:
    """Return how a failed process ended, as words for a message. `status` is that of `subprocess`."""
    if status == -signal.SIGKILL:
        return "by the signal SIGKILL, which the system sends when memory runs out; free memory and try again"
    return f"by the signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
