"""`Target`: a function that takes bytes of others, and the property that must hold for any bytes."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from msgspec import Struct

from chaski.errors import ChaskiError

__all__ = ["CORPUS", "Finding", "Mutation", "Target", "TooSlowError", "outcome"]

CORPUS = Path(__file__).parent / "corpus"
_WAITS = 4
_PACKAGE = str(Path(__file__).parents[1] / "chaski")

Mutation = Callable[[bytes, random.Random], bytes]
"""Returns changed bytes."""


class TooSlowError(BaseException):
    """An input took more than the seconds of its target. No handler of exceptions in chaski catches it."""


class Target(Struct, frozen=True):
    """A part of chaski under test.

    check      feeds bytes to it. A `ChaskiError` is a refusal; every other exception is a finding. So is an
               AssertionError of the check itself, for accepted bytes that do not round-trip
    mutate     changes an input of the corpus
    seconds    of processor time that one input may take; it may last four times as long
    """

    name: str
    check: Callable[[bytes], None]
    mutate: Mutation
    seconds: float = 5.0

    @property
    def property(self) -> str:
        """What must hold: the first paragraph of the check's docstring."""
        return " ".join((self.check.__doc__ or "").split("\n\n")[0].split())

    def corpus(self) -> list[bytes]:
        """Return the committed inputs, in the order of their names."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


class Finding(Struct, frozen=True):
    """An input that violates the property of a target.

    place: the exception and the last line of chaski that it passed; findings of one place are one fault
    """

    place: str
    trace: str


def outcome(target: Target, data: bytes) -> Finding | bool:
    """Feed an input to a target. Return whether it was accepted, or the finding."""
    started = time.process_time()
    is_accepted = True
    try:
        with _interrupted(target.seconds * _WAITS):
            target.check(data)
    except ChaskiError:
        is_accepted = False
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Finding(_place(error), "".join(traceback.format_exception(error)))
    if time.process_time() - started > target.seconds:
        return Finding("TooSlowError", f"it took more than {target.seconds:g} s of processor time")
    return is_accepted


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Interrupt the block after `seconds`. A call of native code ends first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(error: BaseException) -> str:
    lines = list(_lines(error.__traceback__))
    own = [line for line in lines if line.startswith(_PACKAGE)] or lines
    return f"{type(error).__name__} at {own[-1].removeprefix(_PACKAGE + '/') if own else '?'}"


def _lines(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        yield f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
