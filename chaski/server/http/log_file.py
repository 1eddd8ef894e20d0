"""`LogFile`: append lines to a file in a separate thread, so that a slow disk delays no request."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from io import FileIO
from queue import Empty, Full, Queue
from threading import Thread
from types import TracebackType
from typing import Self

__all__ = ["STANDARD_ERROR", "LogFile"]

_log = logging.getLogger(__name__)

STANDARD_ERROR = "-"
_MAX_WAITING = 10_000
_MAX_TOGETHER = 1000
_PATIENCE = 2.0  # seconds to wait for the last lines at the end


class LogFile:
    """A context manager that appends lines to a file, or to standard error if the path is `STANDARD_ERROR`.

    A file that was moved or removed is created again. Lines that cannot be written are dropped, and so are
    lines beyond the `_MAX_WAITING` that wait for the disk. A warning reports the first loss, and another one
    the number of lost lines once writing works again.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: Queue[bytes | None] = Queue(_MAX_WAITING)
        self._thread = Thread(target=self._run, name="chaski-access-log", daemon=True)
        self._file: FileIO | None = None
        self._is_torn = False  # the file ends with an incomplete line
        self._is_failing = False
        self._lost = 0

    @staticmethod
    def check(path: str) -> None:
        """Raise OSError if a file cannot be opened for writing."""
        FileIO(path, "a", opener=_open).close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Full):
            self._waiting.put(None, timeout=_PATIENCE)
        self._thread.join(_PATIENCE)

    def write(self, line: bytes) -> None:
        """Queue a line, which ends with a line feed, without blocking or raising."""
        try:
            self._waiting.put_nowait(line)
        except Full:
            self._lost += 1

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            lines = [line]
            with suppress(Empty):
                while len(lines) < _MAX_TOGETHER and (line := self._waiting.get_nowait()) is not None:
                    lines.append(line)
            self._append(lines)
            if line is None:
                break
        if self._file is not None:
            self._file.close()

    def _append(self, lines: list[bytes]) -> None:
        try:
            file = self._opened()
            rest = memoryview(b"\n" * self._is_torn + b"".join(lines))
            while rest:
                written = file.write(rest) or 0
                self._is_torn = rest[:written].tobytes()[-1:] != b"\n"
                rest = rest[written:]
        except OSError as error:
            self._lost += len(lines)
            if not self._is_failing:
                _log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._is_failing = True
            return
        if self._lost:
            _log.warning("%s can be written again; about %d lines are lost", self._path, self._lost)
        self._is_failing, self._lost = False, 0

    def _opened(self) -> FileIO:
        """Return the file, and reopen it first if its path refers to another file. Raises OSError."""
        if self._file is not None and not self._is_current(self._file):
            self._file.close()
            self._file = None
        if self._file is None:
            is_own = self._path == STANDARD_ERROR
            self._file = FileIO(os.dup(2) if is_own else self._path, "a", opener=_open)
            self._is_torn = False
        return self._file

    def _is_current(self, file: FileIO) -> bool:
        if self._path == STANDARD_ERROR:
            return True
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False


def _open(path: str, flags: int) -> int:
    """Open a file that only its owner may read, since it contains the addresses of clients."""
    return os.open(path, flags, 0o600)
