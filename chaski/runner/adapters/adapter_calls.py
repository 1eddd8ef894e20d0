"""Calls that manage the adapters of a model: typed values that can be sent to another process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from chaski.chat.arguments import path_text
from chaski.chat.sendable import Sendable
from chaski.errors import OptionError, UnsupportedError
from chaski.runner.adapters.adapter_set import AdapterInfo, AdapterSet

__all__ = [
    "AdapterCall",
    "AdapterFiles",
    "Adapters",
    "LateAdapters",
    "ListAdapters",
    "LoadAdapter",
    "UnloadAdapter",
    "adapter_files",
    "answered",
]


_log = logging.getLogger(__name__)


class LoadAdapter(Sendable, frozen=True):
    """Load the adapter in a file under a name. Answered by `Adapters`."""

    name: str
    path: str


class UnloadAdapter(Sendable, frozen=True):
    """Unload an adapter. Answered by `Adapters`."""

    name: str


class ListAdapters(Sendable, frozen=True):
    """List the adapters. Answered by `Adapters`."""


AdapterCall: TypeAlias = LoadAdapter | UnloadAdapter | ListAdapters


class Adapters(Sendable, frozen=True):
    """All adapters of the model, in the order in which they were loaded."""

    adapters: tuple[AdapterInfo, ...]


class LateAdapters:
    """The adapters that a model got after it was loaded: its next process must load them again.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._calls: dict[str, LoadAdapter] = {}
        self._lock = threading.Lock()

    def load(self, start: Callable[[LoadAdapter, Callable[[object], None]], object]) -> None:
        """Start the calls that load them, in order, and log those that fail."""
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            start(call, partial(_note_failure, call))

    def note(self, call: LoadAdapter | UnloadAdapter) -> None:
        """Remember an adapter, or forget it."""
        with self._lock:
            self._calls.pop(call.name, None)
            if isinstance(call, LoadAdapter):
                self._calls[call.name] = call


def _note_failure(call: LoadAdapter, reply: object) -> None:
    if isinstance(reply, Exception):
        _log.warning("the adapter %s cannot be loaded again: %s", call.name, reply)


AdapterFiles: TypeAlias = (
    Mapping[str, str | os.PathLike[str]] | Iterable[str | os.PathLike[str]] | str | os.PathLike[str]
)
"""Adapter files by name. In a list, each adapter is named after its file, without the suffix."""


def answered(adapters: AdapterSet | None, call: AdapterCall) -> list[AdapterInfo]:
    """Execute a call -> all adapters afterwards. Raises the errors of `AdapterSet`."""
    if adapters is None:
        raise UnsupportedError("this model takes no adapters; load a text model, or leave the adapters out")
    match call:
        case LoadAdapter(name, path):
            return adapters.load(name, path)
        case UnloadAdapter(name):
            return adapters.unload(name)
        case ListAdapters():
            return adapters.infos()


def adapter_files(given: AdapterFiles | None) -> dict[str, str]:
    """Return the files of adapters by name, as absolute paths. Raises OptionError if a name occurs twice."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {name: path_text(path, f"adapter {name!r:.80}") for name, path in given.items()}
    found: dict[str, str] = {}
    if not isinstance(given, Iterable | str | os.PathLike):
        raise OptionError(f"adapters is {given!r:.80}; it must be a list of paths, or {{name: path}}")
    for path in [given] if isinstance(given, str | os.PathLike) else given:
        whole = path_text(path, "an adapter")
        name = Path(whole).stem
        if name in found:
            raise OptionError(f"two adapters are called {name!r:.80}; give them as {{name: path}}")
        found[name] = whole
    return found
