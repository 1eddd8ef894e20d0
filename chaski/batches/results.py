"""The results file: one line per completed request, in order of completion."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Self

from chaski.errors import FormatError, StoreError
from chaski.regular_files import regular_descriptor

__all__ = ["Results"]

_SYNC_SECONDS = 1.0


class Results:
    """Results of a batch. A killed process leaves whole lines and at most one partial line.

    done: the ids of completed requests, each with its `BatchLine.request_id`.
    num_failed: number of results that are errors. Safe to use from several threads.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path = path
        self.done: dict[str, str] = {}
        self.num_failed = 0
        self._file = file
        self._lock = threading.Lock()
        self._is_open = True
        self._synced_at = time.monotonic()

    @classmethod
    @contextmanager
    def open(cls, path: Path, retries_failed: bool = False) -> Iterator[Self]:
        """Open or create the file, exclusively for this process.

        A partial line at its end is removed. With `retries_failed`, results that are errors are removed too.
        Raises FormatError for another kind of file, StoreError if another process writes to it, and OSError.
        """
        if retries_failed and path.exists():
            _take_out_failed(path)
        with _locked(path) as file:
            results, end = cls(path, file), 0
            for line, fields in _lines(path, file):
                results._count(fields)
                end += len(line)
            file.truncate(end)
            file.seek(end)
            try:
                yield results
            finally:
                results._close()

    def add(self, custom_id: str, request_id: str, status: int, answer_id: str, body: Any) -> None:
        """Write the result of a request. Raises OSError."""
        response = {"status_code": status, "request_id": answer_id, "body": body}
        fields = {"id": request_id, "custom_id": custom_id, "response": response, "error": None}
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        data = text.encode(errors="replace") + b"\n"
        with self._lock:
            if not self._is_open:  # it comes from an abandoned thread
                return
            _write(self._file, data)
            self._count(fields)
            if time.monotonic() - self._synced_at > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced_at = time.monotonic()

    def _close(self) -> None:
        with self._lock:
            self._is_open = False
            os.fsync(self._file.fileno())

    def _count(self, fields: Mapping[str, Any]) -> None:
        self.done[fields["custom_id"]] = fields["id"]
        self.num_failed += _is_failed(fields)


@contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    try:
        descriptor = regular_descriptor(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StoreError(f"{path}: results cannot be written: {error.strerror}") from None
    with FileIO(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"{path}: another process writes results to it") from None
        yield file


def _take_out_failed(path: Path) -> None:
    """Replace the file by one without error results."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with _locked(path) as file:
        try:
            with FileIO(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as kept:
                for line, fields in _lines(path, file):
                    if not _is_failed(fields):
                        _write(kept, line)
                os.fsync(kept.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _lines(path: Path, file: FileIO) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Yield the whole lines of a results file with their parsed content."""
    with open(file.fileno(), "rb", closefd=False) as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            yield line, _result(line, f"{path}, line {number}")


def _result(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
        if all(isinstance(fields[name], str) for name in ("id", "custom_id")):
            _is_failed(fields)
            return dict(fields)
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    raise FormatError(f"{where}: no result of a batch; write the results to another file with --output")


def _is_failed(fields: Mapping[str, Any]) -> bool:
    return bool(fields["response"]["status_code"] != 200)


def _write(file: FileIO, line: bytes) -> None:
    data = memoryview(line)
    while data:
        data = data[file.write(data) :]
