"""Processes that die at a chosen change of a file: before it, or after half of a write.

Meanwhile, files come from Python's own `_pyio`, which makes every change with a function of `os`.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chaski.runner.prefix import block_files

__all__ = ["FatalChanges"]

_pyio = importlib.import_module("_pyio")

_OF_PATHS = ("chmod", "mkdir", "remove", "rmdir", "truncate", "unlink", "utime")
_OF_TWO = ("link", "rename", "replace")
_OF_FILES = ("fdatasync", "fsync", "ftruncate")


class FatalChanges:
    """Counts the changes below `folder` from 1 on, each write twice; the process dies at number `fatal`.

    Before that, `tell` is called with the change: a function of `os`, and a kind of file.
    """

    def __init__(self, folder: Path, fatal: int, tell: Callable[[str], None]) -> None:
        self.count = 0
        self._folder = folder
        self._fatal = fatal
        self._tell = tell
        self._open: dict[int, str] = {}
        self._lock = threading.Lock()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count changes within the block."""
        with ExitStack() as stack:
            for name in _OF_PATHS:
                stack.enter_context(patch.object(os, name, self._of_path(name, 0)))
            for name in _OF_TWO:
                stack.enter_context(patch.object(os, name, self._of_path(name, 1)))
            for name in _OF_FILES:
                stack.enter_context(patch.object(os, name, self._of_file(name)))
            for name, change in (("open", self._opened), ("write", self._written), ("close", self._closed)):
                stack.enter_context(patch.object(os, name, change(getattr(os, name))))
            stack.enter_context(patch.object(io, "open", _pyio.open))
            stack.enter_context(patch.object(block_files, "FileIO", _pyio.FileIO))
            yield

    def _reach(self, change: str, kind: str) -> bool:
        """Count a change; return whether it is the fatal one."""
        with self._lock:
            self.count += 1
            if self.count != self._fatal:
                return False
            self._tell(f"{change} {kind}")
            return True

    def _kind(self, path: str | os.PathLike[str]) -> str | None:
        """Return the kind of a file, or None outside the folder."""
        found = Path(path)
        if self._folder not in found.parents:
            return None
        if found.suffix in (".block", ".tmp"):
            return found.suffix
        return found.name if found.suffix else "folder"

    def _of_path(self, name: str, place: int) -> Callable[..., Any]:
        done = getattr(os, name)

        def change(*arguments: Any, **options: Any) -> Any:
            path = arguments[place]
            kind = None if isinstance(path, int) else self._kind(path)
            if kind is not None and self._reach(name, kind):
                _die()
            return done(*arguments, **options)

        return change

    def _of_file(self, name: str) -> Callable[..., Any]:
        done = getattr(os, name)

        def change(descriptor: int, *arguments: Any) -> Any:
            kind = self._open.get(descriptor)
            if kind is not None and self._reach(name, kind):
                _die()
            return done(descriptor, *arguments)

        return change

    def _opened(self, done: Callable[..., int]) -> Callable[..., int]:
        def change(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            kind = self._kind(path) if flags & (os.O_WRONLY | os.O_RDWR) else None
            if kind is not None and flags & (os.O_CREAT | os.O_TRUNC) and self._reach("open", kind):
                _die()
            descriptor = done(path, flags, *arguments, **options)
            if kind is not None:
                self._open[descriptor] = kind
            return descriptor

        return change

    def _written(self, done: Callable[..., int]) -> Callable[..., int]:
        def change(descriptor: int, data: Any) -> int:
            kind = self._open.get(descriptor)
            if kind is not None and self._reach("write", kind):
                _die()
            if kind is not None and self._reach("half of write", kind):
                done(descriptor, data[: len(data) // 2])
                _die()
            return done(descriptor, data)

        return change

    def _closed(self, done: Callable[..., None]) -> Callable[..., None]:
        def change(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            done(descriptor)

        return change


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # never returns
