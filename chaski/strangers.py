"""`Strangers`: limits the number and time of connections that have not yet proved knowledge of a key."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["PATIENCE", "Strangers"]

PATIENCE = 5.0
"""Seconds for the peer's whole proof, including the TLS handshake."""
_MOST = 64


class Strangers:
    """Unauthenticated connections. Safe to use from several threads.

    If there are too many, the oldest connection of the host with the most connections is closed. Therefore
    strangers cannot lock out a host that knows the key, because its proof takes only a moment.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._present: dict[int, tuple[str, Callable[[], None]]] = {}
        self._count = 0

    @contextmanager
    def enter(self, host: str, close: Callable[[], None]) -> Iterator[None]:
        """Count a connection of a host during the block. `close` is called if it must make room."""
        with self._lock:
            number = self._count = self._count + 1
            self._present[number] = (host, close)
            leaving = self._leaving()
        if leaving is not None:
            leaving()
        try:
            yield
        finally:
            with self._lock:
                self._present.pop(number, None)

    def _leaving(self) -> Callable[[], None] | None:
        if len(self._present) <= self._most:
            return None
        crowds = Counter(host for host, _ in self._present.values())
        largest = max(crowds.values())
        oldest = next(number for number, (host, _) in self._present.items() if crowds[host] == largest)
        return self._present.pop(oldest)[1]
