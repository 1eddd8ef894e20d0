"""The directory of a cluster: a Ray actor that stores the replicas of all models and the key of their links.

Replicas register themselves every second. A replica without recent registration is not listed. An actor that
was restarted is empty at first and complete a second later, as is a cluster whose head came back.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Any

import ray

from chaski.cluster.members import Member

__all__ = ["Directory"]

_log = logging.getLogger(__name__)

NAMESPACE = "chaski"
_NAME = "directory"
# Seconds after its last registration for which a replica is listed.
_FORGET = 10.0
_PATIENCE = 5.0
# On a busy machine, the first request may have to wait until the actor is started.
_FIRST_PATIENCE = 60.0


class _Entries:
    """The actor itself."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._entries: dict[str, dict[str, tuple[float, Member]]] = {}

    def key(self, known: bytes) -> bytes:
        """Return the key of the cluster. An actor without a key adopts `known`."""
        if self._key is None:
            self._key = known
        return self._key

    def enter(self, model: str, member: Member, key: bytes) -> None:
        """Add or update a replica of a model."""
        self.key(key)
        self._entries.setdefault(model, {})[member.name] = monotonic(), member

    def list(self, model: str) -> list[Member]:
        """Return the replicas of a model."""
        now, entries = monotonic(), self._entries.get(model, {})
        for name in [name for name, (at, _) in entries.items() if now - at > _FORGET]:
            del entries[name]
        return [member for _, member in entries.values()]

    def forget(self, model: str) -> None:
        """Forget all replicas of a model."""
        self._entries.pop(model, None)


class Directory:
    """A client of the directory, which reconnects after a restart of the actor.

    key   the key of the cluster: the given one, unless the directory has another
    """

    def __init__(self, key: bytes) -> None:
        self._lock = threading.Lock()
        self._actor: Any = None
        self.key: bytes = self._ask("key", key, patience=_FIRST_PATIENCE)

    def enter(self, model: str, member: Member) -> None:
        """Register a replica. Does nothing if the directory cannot be reached; the caller retries."""
        self._try("enter", model, member, self.key)

    def list(self, model: str) -> list[Member] | None:
        """Return the replicas of a model, or None if the directory cannot be reached."""
        found: list[Member] | None = self._try("list", model)
        return found

    def forget(self, model: str) -> None:
        """Forget all replicas of a model."""
        self._try("forget", model)

    def _try(self, method: str, *arguments: Any) -> Any:
        try:
            return self._ask(method, *arguments)
        except Exception as error:  # Ray raises many types, all of which mean that it cannot be reached
            _log.debug("cannot reach the cluster's directory: %s", error)
            return None

    def _ask(self, method: str, *arguments: Any, patience: float = _PATIENCE) -> Any:
        try:
            return ray.get(getattr(self._living(), method).remote(*arguments), timeout=patience)
        except ray.exceptions.RayError:
            with self._lock:
                self._actor = None
            raise

    def _living(self) -> Any:
        with self._lock:
            if self._actor is None:
                self._actor = (
                    ray.remote(_Entries)
                    .options(
                        name=_NAME,
                        namespace=NAMESPACE,
                        lifetime="detached",
                        get_if_exists=True,
                        max_restarts=-1,
                        max_task_retries=-1,
                        num_cpus=0,
                    )
                    .remote()
                )
            return self._actor
