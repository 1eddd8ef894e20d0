"""`ClusterModel`: a model served by several replicas, used like a `Worker`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from chaski.cluster.answers import RoutedCall
from chaski.cluster.replica_set import Replacement, ReplicaSet
from chaski.cluster.routed_model import RoutedModel
from chaski.errors import UnsupportedError
from chaski.runner.adapters.adapter_calls import LoadAdapter, UnloadAdapter
from chaski.runner.channels.messages import (
    CallHandle,
    LookLive,
    ModelCall,
    ReplyCallback,
    ReplyOrError,
)
from chaski.runner.engine.live import LiveSequences, TokenTotals
from chaski.runner.states.state_calls import EraseSlot, LoadState, SaveSlot, SaveState

__all__ = ["ClusterModel"]


class ClusterModel(RoutedModel):
    """The methods of an `LLM`, answered by the replicas of a cluster. Safe to use from several threads.

    If a replica is lost, another one continues its answers, and their readers see a pause. If the replicas
    cannot load the model, requests fail with the loading error.
    """

    def __init__(self, replicas: ReplicaSet) -> None:
        super().__init__(replicas)
        self._replicas = replicas
        self._idle_seconds: Callable[[], float | None] = lambda: None
        self._unload: Callable[[], None] = lambda: None

    def replace(self) -> int:
        """Replace all replicas with new ones, a few at a time; return the new generation.

        Running answers finish first, and no request fails. Raises ClusterError while Ray is unreachable.
        """
        return self._replicas.replace()

    def replacement(self, generation: int) -> Replacement:
        """Return the progress of `replace`."""
        return self._replicas.replacement(generation)

    def lend(self, idle_seconds: Callable[[], float | None], unload: Callable[[], None]) -> None:
        """Allow the cluster to ask for this model's place while it is idle, for a model that is in use.

        idle_seconds  returns the seconds since its last request ended, None while it is in use
        unload        called from another thread to unload it, perhaps several times

        Without this call the model always counts as in use.
        """
        self._idle_seconds, self._unload = idle_seconds, unload

    def idle_seconds(self) -> float | None:
        """Return for how many seconds the model has been idle, or None while it is in use."""
        return self._idle_seconds()

    def make_room(self) -> None:
        """Ask the owner to unload the model if it is still idle."""
        self._unload()

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Start to answer a call, see `Channel`. Raises OptionError for values that cannot be sent, and
        ClosedError after `close`.

        Raises UnsupportedError for calls about the state of one engine.
        """
        self.check_open()
        match call:
            case LookLive():
                return _LookEverywhere(self._replicas, put)
            case SaveState() | LoadState() | SaveSlot() | EraseSlot():
                raise UnsupportedError("states belong to one engine; a cluster saves and loads none")
            case LoadAdapter() | UnloadAdapter():
                return _EveryReplica(self._replicas, call, put)
        return self._route(call, put)


class _EveryReplica:
    """A call to all replicas. Its result is the last reply, or the first error."""

    def __init__(self, replicas: ReplicaSet, call: LoadAdapter | UnloadAdapter, put: ReplyCallback) -> None:
        replicas.adapters.note(call)
        self._put = put
        peers = replicas.peers()
        self._num_left = len(peers)
        self._handles = [peer.start(call, self._take) for peer in peers]
        if not peers:
            self._handles = []
            RoutedCall(replicas, call, put).begin()

    def cancel(self) -> None:
        """No more replies are awaited."""
        for handle in self._handles:
            handle.cancel()

    def _take(self, reply: ReplyOrError) -> None:
        self._num_left -= 1
        is_error = isinstance(reply, Exception)
        if is_error or self._num_left == 0:
            self._put(reply)
        if is_error:
            self._num_left = 0


class _LookEverywhere:
    """Collects the statistics of all replicas."""

    def __init__(self, replicas: ReplicaSet, put: ReplyCallback) -> None:
        self._put = put
        self._found: list[LiveSequences] = []
        peers = replicas.peers()
        self._num_left = len(peers)
        self._handles = [peer.start(LookLive(), partial(self._take, peer.name)) for peer in peers]
        if not peers:
            self._put(_together([]))

    def cancel(self) -> None:
        """No more replies are awaited."""
        for handle in self._handles:
            handle.cancel()

    def _take(self, name: str, reply: ReplyOrError) -> None:
        self._num_left -= 1
        if isinstance(reply, LiveSequences):
            self._found.append(reply.of_replica(name))
        if self._num_left == 0:
            self._put(_together(self._found))


def _together(found: list[LiveSequences]) -> LiveSequences:
    numbered = [
        replace(sequence, number=sequence.number * len(found) + index)
        for index, each in enumerate(found)
        for sequence in each.sequences
    ]
    return LiveSequences(
        seconds=max((each.seconds for each in found), default=0.0),
        totals=TokenTotals.together(each.totals for each in found),
        num_sequences=sum(each.num_sequences for each in found),
        sequences=tuple(numbered),
    )
