"""Standard streams that are missing or fail: a parent may close them, a pipe may end, a disk may be full.

Without an open descriptor 0, 1 or 2 the next file or socket gets that number, and whatever is meant for a
standard stream goes there, also in processes that inherit it.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["OutputLostError", "catch_lost_output", "open_missing"]

_NAMES = ("stdin", "stdout", "stderr")


class OutputLostError(Exception):
    """The standard output takes no more bytes. `cause` is the error of the system."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror or str(cause))
        self.cause = cause


def open_missing() -> None:
    """Open the null device on descriptors 0, 1 and 2 if they are closed, and Python's streams on them.

    Call it before any other file or socket is opened.
    """
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def catch_lost_output() -> None:
    """Let a write to the standard output that fails raise OutputLostError, and one to stderr be dropped.

    An OSError of a write would be taken for one of another file by code that reads and writes files.
    """
    sys.stdout = _text_on(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text_on(_Errors(2, "w", closefd=False), sys.stderr)


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            raise OutputLostError(error) from error


class _Errors(io.FileIO):
    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            # There is nowhere left to say so.
            return memoryview(data).nbytes


def _text_on(raw: io.FileIO, like: TextIO) -> io.TextIOWrapper:
    """Return a text stream on `raw` with the settings of another one."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=raw.isatty() or getattr(like, "line_buffering", False),
        write_through=getattr(like, "write_through", False),
    )
