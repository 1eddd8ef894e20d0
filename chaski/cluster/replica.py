"""A replica: a model in a process on a node. Ray Serve starts, watches and ends it.

If several nodes compute the model together, this process sends them their requests (`shards.py`).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import ray
from msgspec.structs import replace
from ray import serve

from chaski.cluster.directory import Directory
from chaski.cluster.gpus import hide_others
from chaski.cluster.links import Listener
from chaski.cluster.members import Member, node_label
from chaski.cluster.replica_options import ReplicaOptions
from chaski.cluster.serving import Connection
from chaski.cluster.shards import ShardGroup
from chaski.cluster.watched_worker import WatchedWorker
from chaski.errors import ChaskiError, ClusterError, WorkerError, class_name
from chaski.runner.channels.messages import CallHandle, ModelCall, ReplyCallback, ReplyOrError
from chaski.runner.channels.worker.client import Worker
from chaski.store.store import Store

__all__ = ["Replica"]

_log = logging.getLogger(__name__)

# Seconds between two registrations while the model is loaded, and between two questions about its worker.
_HEARTBEAT, _LOADED_HEARTBEAT = 1.0, 3.0


class Replica:
    """The deployment. Requests bypass Ray: callers connect to the address in the directory.

    key         of the cluster
    generation  as in `Member`
    shards      number of nodes that compute it together
    """

    def __init__(self, options: ReplicaOptions, key: bytes, generation: int, shards: int = 1) -> None:
        hide_others()
        self._options = options
        self._directory = Directory(key)
        node = ray.util.get_node_ip_address()
        host = options.host or node
        self._connections: list[Connection] = []
        self._group: ShardGroup | None = None
        self._is_over = threading.Event()
        self._member = Member(
            name=serve.get_replica_context().replica_id.unique_id,
            address=(host, 0),
            node=node_label(socket.gethostname(), node),
            pid=os.getpid(),
            places=options.places,
            share=0.0,
            generation=generation,
        )
        threading.Thread(target=self._enter_regularly, name="chaski-heartbeat", daemon=True).start()
        try:
            if shards > 1:
                self._group = ShardGroup(options, shards, self._directory.key, self._end_at_once)
            self._worker = WatchedWorker(self._open_worker, self._note_share, lost=self._end_at_once)
        except ChaskiError as error:
            # Only an error of the model or its options is a verdict. A shard that ended or cannot be
            # reached is a loss.
            if isinstance(error, WorkerError | ClusterError):
                self._end_at_once(str(error))
            self._change(problem=(class_name(error), str(error)))
            raise
        self._listener = Listener(host, self._directory.key, self._accept)
        processes = self._group.processes if self._group is not None else ()
        self._change(address=self._listener.address, share=1.0, shards=processes)

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Let the worker answer a call, see `Channel`. A lost shard does not end an answer."""

        def put_unless_lost(reply: ReplyOrError) -> None:
            if isinstance(reply, ClusterError):
                self._end_at_once(str(reply))
            put(reply)

        return self._worker.start(call, put if self._group is None else put_unless_lost)

    def check_open(self) -> None:
        """Raise ClosedError if the worker is closed."""
        self._worker.check_open()

    def check_health(self) -> None:
        """Raise if the model cannot be loaded again, so that Ray Serve replaces this replica."""
        self._worker.check_health()

    def __del__(self) -> None:
        """End after all answers have finished, or after their time limit."""
        if self._is_over.is_set() or not hasattr(self, "_listener"):
            self._is_over.set()
            return
        self._change(is_leaving=True)
        until = monotonic() + self._options.leaving_seconds
        # Callers learn of this at their next query of the directory.
        sleep(2 * _HEARTBEAT)
        while any(map(len, self._connections)) and monotonic() < until:
            sleep(0.1)
        self._is_over.set()
        self._listener.close()
        self._worker.close()
        if self._group is not None:
            self._group.close()

    def _open_worker(self, progress: Callable[[float], None]) -> Worker:
        store = Store.default()
        places = {name: str(file.find(store)) for name, file in self._options.files.items()}
        path = places.pop("model")
        together = {} if self._group is None else {"backend": "sharded"}
        options = {**self._options.options, **places, **together}
        return Worker(path, progress=progress, **options)

    def _end_at_once(self, reason: str) -> None:
        """End the process like a crash, so that Ray Serve places another group.

        The worker and the remaining shards end with it.
        """
        _log.warning("this replica is shutting down: %s", reason)
        if self._group is not None:
            self._group.abandon()
        os._exit(1)

    def _note_share(self, share: float) -> None:
        self._member = replace(self._member, share=share)

    def _change(self, **changes: Any) -> None:
        self._member = replace(self._member, **changes)
        self._directory.enter(self._options.model, self._member)

    def _enter_regularly(self) -> None:
        entered, entered_at = self._member, monotonic()
        while not self._is_over.wait(_HEARTBEAT):
            is_loaded = hasattr(self, "_listener")
            if not is_loaded or self._member != entered or monotonic() - entered_at >= _LOADED_HEARTBEAT:
                entered, entered_at = self._member, monotonic()
                self._directory.enter(self._options.model, entered)
            if is_loaded:
                self._worker.watch()

    def _accept(self, end: socket.socket) -> None:
        connection = Connection(end, self)
        self._connections.append(connection)
        try:
            connection.serve()
        finally:
            self._connections.remove(connection)
