"""The directory of a cluster: a Ray actor with the replicas of all models, the models that servers want, and
the key of their links.

Replicas register themselves every second, and servers renew what they want twice a second. A replica or a
server without recent registration is not listed. An actor that was restarted is empty at first and complete a
second later, as is a cluster whose head came back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import ray

from chaski.cluster.entries import Claim, Entries, Listed
from chaski.cluster.members import Member

__all__ = ["Directory"]

_log = logging.getLogger(__name__)

NAMESPACE = "chaski"
# Actors outlive servers, so another interface has another name.
_NAME = "directory 2"
_PATIENCE = 5.0
# On a busy machine, the first request may have to wait until the actor is started.
_FIRST_PATIENCE = 60.0


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

    def renew(self, server: str, claims: Sequence[Claim]) -> Listed | None:
        """Note what a server wants; return the content, or None if the directory cannot be reached."""
        found: Listed | None = self._try("renew", server, claims, self.key)
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
                    ray.remote(Entries)
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
