"""Errors of one sequence end that sequence alone, and no other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from chaski.errors import ChaskiError, ComputationError
from chaski.runner.engine.sequence import Sequence

__all__ = ["Isolation"]

T = TypeVar("T")
D = TypeVar("D")

_log = logging.getLogger(__name__)


class Isolation:
    """Runs work for one sequence at a time. `num_failed` counts the sequences that ended with an error."""

    def __init__(self) -> None:
        self.num_failed = 0
        self._handled: Sequence | None = None

    def attempt(self, sequence: Sequence, otherwise: D, work: Callable[..., T], *arguments: object) -> T | D:
        """Run `work` for a sequence. An error of it ends the sequence; the result is `otherwise` then."""
        self._handled = sequence
        found: T | D = otherwise
        try:
            found = work(*arguments)
        except Exception as error:
            self.fail(sequence, error)
        self._handled = None
        return found

    def fail(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence with an error."""
        self.num_failed += 1
        if isinstance(error, ChaskiError):
            failure = error
        else:
            _log.error("a request cannot be computed", exc_info=error)
            failure = ComputationError(f"the request cannot be computed: {type(error).__name__}: {error}")
            failure.__cause__ = error
        sequence.fail(failure)

    def interrupted(self) -> Sequence | None:
        """Return the sequence whose work an interrupt stopped, if there is one."""
        handled, self._handled = self._handled, None
        return handled
