"""Handles missing or failing standard streams: closed by the parent, a broken pipe or a full disk.

If descriptor 0, 1 or 2 is closed, the next file or socket gets that number. Data for the standard stream then
goes there, also in child processes.
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
    """The standard output cannot be written. `cause` is the system's error."""

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
    """Make a failed write to the standard output raise OutputLostError, and drop failed writes to stderr.

    Code that reads and writes files would mistake an OSError for an error of its own file.
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
            # No stream is left to report the failure.
            return memoryview(data).nbytes


def _text_on(raw: io.FileIO, like: TextIO) -> io.TextIOWrapper:
    """Return a text stream on `raw` with the settings of `like`."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=raw.isatty() or getattr(like, "line_buffering", False),
        write_through=getattr(like, "write_through", False),
    )
