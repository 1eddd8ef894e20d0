"""Processes that do the work of one request: their start, their errors and their end."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from chaski.errors import ChaskiError, WorkerError, class_name, error_class

__all__ = ["command", "failure", "raise_failure", "reason"]


def command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of ours as a program."""
    return sys.executable, "-P", "-m", module


def failure(error: Exception, what: str) -> dict[str, str]:
    """Return an error as the process sends it; `what` could not be done.

    The trace of one that is not ours goes to the log, and nothing of it to clients.
    """
    if isinstance(error, ChaskiError):
        return {"kind": class_name(error), "error": str(error)}
    traceback.print_exception(error)
    return {"kind": WorkerError.__name__, "error": f"{what} failed; the server's log says why"}


def raise_failure(answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer is, if it is one."""
    if "error" in answer:
        raise error_class(answer["kind"])(answer["error"])


def reason(status: int) -> str:
    """Say how a process has ended that has not done its work. status: as `subprocess` reports it."""
    if status == -signal.SIGKILL:
        return "by the signal SIGKILL, which the system sends when memory runs out; free some and try again"
    return f"by the signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
