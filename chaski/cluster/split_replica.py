"""`SplitReplica`: the only replica of a model that nodes without Ray compute together, and its reloading.

The nodes have one head, a worker process of this machine. When a node or the head is lost, another head loads
the model on the nodes that can be reached.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from chaski.cluster.backoff import Backoff
from chaski.cluster.peer import LostReplicaError
from chaski.cluster.replicas import Ended, Losses, Place, ReplicaState
from chaski.cluster.watched_nodes import NodeAddress, WatchedNodes
from chaski.cluster.watched_worker import WatchedWorker, WorkerPatience
from chaski.errors import ChaskiError, ClusterError, WorkerError
from chaski.ml.backend import ProgressCallback
from chaski.runner.adapters.adapter_calls import LateAdapters
from chaski.runner.channels.messages import CallHandle, Info, ModelCall, ReplyCallback, ReplyOrError
from chaski.runner.channels.worker.client import Worker
from chaski.runner.engine.live import LiveSequences

__all__ = ["OpenOnNodes", "SplitReplica"]

_log = logging.getLogger(__name__)

OpenOnNodes = Callable[[Sequence[NodeAddress], Info | None, ProgressCallback], Worker]
"""Starts a worker on nodes. The description is that of the first worker, whose sizes the others keep."""

_ROUND = 0.5
# A batch may take minutes on slow nodes. The head itself notices a node that hangs.
_PATIENCE = WorkerPatience(standstill=600.0)
# Seconds for which a node may be away before the model is loaded without it.
_AWAY = 10.0
# Seconds until a number of nodes that was too small for the model is tried again.
_TOO_FEW = 60.0
# Seconds for which a node that is back waits for the end of running answers. Then they are interrupted.
_REJOIN = 60.0


class SplitReplica:
    """The `Replicas` of a split model: one, or none while it is loaded again.

    open      starts a worker
    progress  called with the loaded share
    """

    num_open = 1

    def __init__(self, nodes: WatchedNodes, open: OpenOnNodes, progress: ProgressCallback) -> None:
        self._nodes = nodes
        self._open = open
        self._progress = progress
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._worker: Worker | None = None
        self._peer: _Peer | None = None
        self._is_loading = False
        self._number = self._num_answers = 0
        self.adapters = LateAdapters()
        self._waiting: list[Callable[[], None]] = []
        self._num_woken = 0
        self._names = ""
        self.losses = Losses()
        self._too_few, self._too_few_until = 0, 0.0
        self.problem: ChaskiError | None = None
        self.trouble = ""
        self.failed_loads = 0
        self.moved_at = monotonic()
        self.info: Info | None = None
        self._threads = [
            threading.Thread(target=work, name="chaski-nodes", daemon=True)
            for work in (self._keep_loaded, self._wake_regularly)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed.is_set()

    @property
    def num_waiting(self) -> int:
        """The number of calls that wait until the model is loaded again."""
        return max(len(self._waiting), self._num_woken)

    def states(self) -> list[ReplicaState]:
        """Describe the replica, unless the model is being loaded again."""
        worker, info = self._worker, self.info
        if self.any_peer() is None or worker is None or info is None:
            return []
        state = ReplicaState(
            name=str(self._number),
            node=self._names,
            pid=worker.pid or 0,
            places=info.parallel,
            answers=self._num_answers,
            is_leaving=False,
            generation=0,
        )
        return [state]

    def named(self, reply: ReplyOrError) -> ReplyOrError:
        """Return figures of sequences with the name of the replica, and other replies as they are."""
        return reply.of_replica(str(self._number)) if isinstance(reply, LiveSequences) else reply

    def any_peer(self) -> _Peer | None:
        """Return the replica, or None while it is loaded again."""
        peer = self._peer
        return None if peer is None or peer.is_lost else peer

    def take(self, blocks: Sequence[int], prompt_tokens: int, without: Sequence[int] = ()) -> Place | None:
        """Assign a request to the replica until `ended`. Return None while it is loaded again."""
        with self._lock:
            peer = self.any_peer()
            if peer is None:
                return None
            self._num_answers += 1
            return Place(self._number, peer, prompt_tokens, str(self._number), self._names)

    def computed(self, place: Place) -> None:
        """Do nothing: there is no other replica to choose."""

    def measured(self, place: Place, prefill: float | None, answer_seconds: float) -> None:
        """Do nothing: there is no other replica to choose."""

    def ended(self, place: Place) -> None:
        """Record that a request has ended, successfully or not."""
        with self._lock:
            if place.replica == self._number:
                self._num_answers -= 1

    def num_answers(self, place: Place) -> int:
        """Return the number of running answers, or 0 if the replica is gone."""
        return self._num_answers if place.replica == self._number else 0

    def later(self, call: Callable[[], None]) -> None:
        """Call `call` from another thread when the model may be loaded."""
        with self._lock:
            self._waiting.append(call)

    def close(self) -> None:
        """End the worker. Its requests fail with ClosedError."""
        self._is_closed.set()
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.close()
        for thread in self._threads:
            thread.join()
        self._wake()

    def _keep_loaded(self) -> None:
        backoff = Backoff()
        found: Sequence[NodeAddress] | None = None
        while not self.is_closed:
            nodes = self._await_nodes() if found is None else found
            found = None
            try:
                watched = self._load(nodes)
            except ChaskiError as error:
                if self._is_final(error, nodes):
                    return
                self._is_closed.wait(backoff.pause())
                continue
            except Exception as error:
                _log.exception("loading the model failed")
                self.problem = ClusterError(f"loading the model failed: {error!r}")
                return
            backoff.reset()
            found = self._answer(watched, nodes)

    def _await_nodes(self) -> Sequence[NodeAddress]:
        """Wait until all nodes can be reached, or enough of them while the others have been away for long."""
        backoff, began_at = Backoff(), monotonic()
        while True:
            found = self._nodes.reachable()
            is_enough = len(found) > (self._too_few if monotonic() < self._too_few_until else 0)
            is_late = monotonic() - began_at >= _AWAY
            if len(found) == len(self._nodes.all) or (is_late and is_enough) or self.is_closed:
                return found
            self.trouble = self._nodes.trouble
            self._is_closed.wait(backoff.pause())

    def _load(self, nodes: Sequence[NodeAddress]) -> WatchedWorker:
        """Load the model. Raises the errors of loading."""

        def open(progress: ProgressCallback) -> Worker:
            worker = self._open(nodes, self.info, progress)
            with self._lock:
                self._worker = worker
            if self.is_closed:  # meanwhile
                worker.close()
            return worker

        self.moved_at, self._is_loading = monotonic(), True
        try:
            watched = WatchedWorker(open, self._note_share, _PATIENCE)
            assert self._worker is not None, "it was opened"
            info = self._worker.info()
        except BaseException:
            if self._worker is not None:
                self._worker.close()
            raise
        finally:
            self._is_loading = False
        self.info = info if self.info is None else self.info
        return watched

    def _is_final(self, error: ChaskiError, nodes: Sequence[NodeAddress]) -> bool:
        """Note why loading failed; return whether it is a verdict about the model or its options."""
        if self.is_closed:
            return True
        self.trouble = str(error)
        is_lost = isinstance(error, WorkerError | ClusterError)
        if not is_lost and len(nodes) < len(self._nodes.all):
            self._too_few, self._too_few_until = len(nodes), monotonic() + _TOO_FEW
            _log.warning("%d of %d nodes are too few: %s", len(nodes), len(self._nodes.all), error)
            return False
        if not is_lost and self.info is None:
            self.problem = error
            return True
        self.failed_loads += 1
        return False

    def _answer(self, watched: WatchedWorker, nodes: Sequence[NodeAddress]) -> Sequence[NodeAddress] | None:
        """Answer requests until the worker ends, or more nodes can take part; return these nodes."""
        peer = _Peer(watched, lambda: self._num_answers)
        self.adapters.load(peer.start)
        with self._lock:
            self._peer, self._names = peer, ", ".join(node.name for node in nodes)
            self._number += 1
            self._num_answers = 0
            num_waiting = len(self._waiting)
        if self._number > 1 or len(nodes) < len(self._nodes.all):
            _log.warning(
                "the model is loaded on %d of %d nodes, and %d requests continue",
                len(nodes),
                len(self._nodes.all),
                num_waiting,
            )
        self.failed_loads, self.trouble = 0, ""
        self._wake()
        try:
            return self._stay(peer, watched, nodes)
        finally:
            peer.lose()
            assert self._worker is not None, "it was opened"
            self._worker.close()

    def _stay(
        self, peer: _Peer, watched: WatchedWorker, nodes: Sequence[NodeAddress]
    ) -> Sequence[NodeAddress] | None:
        backoff, asks_at, back_since = Backoff(1.0, 30.0), monotonic(), 0.0
        assert self._worker is not None, "it was opened"
        while not self._is_closed.wait(_ROUND) and not peer.is_lost and self._worker.is_running:
            watched.watch()
            if len(nodes) == len(self._nodes.all) or monotonic() < asks_at:
                continue
            found = self._nodes.reachable()
            if len(found) <= len(nodes):
                back_since, asks_at = 0.0, monotonic() + backoff.pause()
                continue
            back_since = back_since or monotonic()
            if self._num_answers == 0 or monotonic() - back_since >= _REJOIN:
                return found
        return None

    def _note_share(self, share: float) -> None:
        self.moved_at = monotonic()
        self._progress(share)

    def _wake_regularly(self) -> None:
        while not self._is_closed.wait(_ROUND):
            self._wake()
            worker, limit = self._worker, _PATIENCE.loading
            if self._is_loading and worker is not None and monotonic() - self.moved_at > limit:
                _log.warning("loading the model has made no progress for %.0f s; it begins again", limit)
                self.moved_at = monotonic()
                worker.close()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._num_woken = len(waiting)
        for call in waiting:
            call()
        self._num_woken = 0


class _Peer:
    """The worker as a replica. A lost node is a lost replica."""

    def __init__(self, watched: WatchedWorker, num_answers: Callable[[], int]) -> None:
        self._watched = watched
        self._num_answers = num_answers
        self.is_lost = False
        self.num_lost = 0

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Send a call. It fails with LostReplicaError if a node or the worker is lost."""

        def take(reply: ReplyOrError) -> None:
            if isinstance(reply, ClusterError | WorkerError):
                self.lose()
                reply = LostReplicaError(str(reply))
            put(reply)

        try:
            return self._watched.start(call, take)
        except WorkerError as error:
            take(error)
            return Ended()

    def lose(self) -> None:
        """Take no more calls."""
        if not self.is_lost:
            self.num_lost, self.is_lost = self._num_answers(), True
