"""Keeps keys that are typed during output from appearing in it. The next reader of the terminal gets them."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["quiet_terminal", "typed_ahead"]

Attributes: TypeAlias = "list[Any]"
_INPUT, _LOCAL, _CHARACTERS = 0, 3, 6  # places in the attributes of termios
_ENDING = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
_MOST_BYTES = 1 << 16
# The line editor lets the terminal mark a paste, so that it is one message.
_MARKED_PASTE, _PLAIN_PASTE = b"\x1b[?2004h", b"\x1b[?2004l"


@contextmanager
def quiet_terminal(keeps_keys: bool = False) -> Iterator[None]:
    """Switch the echo of the terminal off, and on again at the end, when stopped by Ctrl-Z, and by signals.

    Without a terminal on the standard output, or in the background, nothing happens.

    keeps_keys: the next reader gets each key as it was typed, such as Enter and Ctrl-D, for the line editor.
        The terminal may mark pastes until the end. Otherwise the terminal collects lines, for a shell.
    """
    if not _is_in_front() or current_thread() is not main_thread():
        yield
        return
    before = termios.tcgetattr(1)
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (*_ENDING, signal.SIGTSTP)}

    def restore() -> None:
        _set(before)
        if keeps_keys:
            _write(_PLAIN_PASTE)

    def end(number: int, _: FrameType | None) -> None:
        """Restore the terminal, and receive the signal again."""
        restore()
        signal.signal(number, handlers[number])
        os.kill(os.getpid(), number)

    def stop(number: int, frame: FrameType | None) -> None:
        during = termios.tcgetattr(1)
        end(number, frame)  # the process stops here, and continues after `fg`
        signal.signal(number, stop)
        _set(during)
        if keeps_keys:
            _write(_MARKED_PASTE)

    try:
        for number in handlers:
            # A signal that the parent ignores stays ignored.
            if handlers[number] not in (signal.SIG_IGN, None):
                signal.signal(number, stop if number == signal.SIGTSTP else end)
        _set(_quiet(before, keeps_keys))
        yield
    finally:
        restore()
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


def typed_ahead() -> bytes:
    """Return and remove the keys that were typed so far. Call it within `quiet_terminal(keeps_keys=True)`."""
    if not (sys.stdin.isatty() and _is_in_front()):
        return b""
    found = b""
    before = termios.tcgetattr(0)
    now = _copy(before)
    now[_CHARACTERS][termios.VMIN] = now[_CHARACTERS][termios.VTIME] = 0
    termios.tcsetattr(0, termios.TCSANOW, now)
    try:
        while len(found) < _MOST_BYTES and (piece := os.read(0, 4096)):
            found += piece
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
    return found


def _is_in_front() -> bool:
    """Return whether the standard output is a terminal that this process may change.

    The system stops a process that changes the terminal from the background.
    """
    if not os.isatty(1):
        return False
    try:
        return os.tcgetpgrp(1) == os.getpgrp()
    except OSError:  # it is not the terminal that controls jobs
        return True


def _quiet(before: Attributes, keeps_keys: bool) -> Attributes:
    quiet = _copy(before)
    quiet[_LOCAL] &= ~termios.ECHO
    if keeps_keys:
        quiet[_LOCAL] &= ~termios.ICANON
        quiet[_INPUT] &= ~termios.ICRNL  # Enter stays different from Ctrl-J
        quiet[_CHARACTERS][termios.VMIN], quiet[_CHARACTERS][termios.VTIME] = 1, 0
    return quiet


def _copy(attributes: Attributes) -> Attributes:
    return [list(each) if isinstance(each, list) else each for each in attributes]


def _write(sequence: bytes) -> None:
    with suppress(OSError):
        os.write(1, sequence)


def _set(attributes: Attributes) -> None:
    with suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(1, termios.TCSANOW, attributes)
