"""`ClusterModel`: a model served by several replicas, used like a `Worker`."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.cluster.answers import RoutedAnswer, RoutedCall
from chaski.cluster.replica_set import Replacement, ReplicaSet, ReplicaState
from chaski.errors import UnsupportedError, closed
from chaski.runner.adapters.adapter_calls import LoadAdapter, UnloadAdapter
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.blocking import ChannelMethods
from chaski.runner.channels.messages import (
    Answerable,
    CallHandle,
    LookLive,
    ModelCall,
    ReplyCallback,
    ReplyOrError,
)
from chaski.runner.engine.live import LiveSequences, TokenTotals
from chaski.runner.states.state_calls import EraseSlot, LoadState, SaveSlot, SaveState

__all__ = ["ClusterModel"]


class ClusterModel(ChannelMethods):
    """The methods of an `LLM`, answered by the replicas of a cluster. Safe to use from several threads.

    If a replica is lost, another one continues its answers, and their readers see a pause. If the replicas
    cannot load the model, requests fail with the loading error.
    """

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas

    @property
    def is_running(self) -> bool:
        """True until it is closed. Lost replicas are restarted."""
        return not self._replicas.is_closed

    @property
    def num_replicas(self) -> int:
        """The number of replicas that take requests, at least 1."""
        return max(1, self._replicas.num_open)

    def replicas(self) -> list[ReplicaState]:
        """Describe the current replicas."""
        return self._replicas.states()

    def replace(self) -> int:
        """Replace all replicas with new ones, a few at a time; return the new generation.

        Running answers finish first, and no request fails. Raises ClusterError while Ray is unreachable.
        """
        return self._replicas.replace()

    def replacement(self, generation: int) -> Replacement:
        """Return the progress of `replace`."""
        return self._replicas.replacement(generation)

    def asynchronous(self) -> AsyncModel:
        """The same model for event loops."""
        return AsyncModel(self)

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
        routed = (
            RoutedAnswer(self._replicas, call, put)
            if isinstance(call, Answerable)
            else RoutedCall(self._replicas, call, put)
        )
        routed.begin()
        return routed

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._replicas.is_closed:
            raise closed()

    def close(self) -> None:
        """End all replicas; requests that they were answering fail with ClosedError."""
        self._replicas.close()


class _EveryReplica:
    """A call to all replicas. Its result is the last reply, or the first error."""

    def __init__(self, replicas: ReplicaSet, call: LoadAdapter | UnloadAdapter, put: ReplyCallback) -> None:
        replicas.remember(call)
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
        self._handles = [peer.start(LookLive(), self._take) for peer in peers]
        if not peers:
            self._put(_together([]))

    def cancel(self) -> None:
        """No more replies are awaited."""
        for handle in self._handles:
            handle.cancel()

    def _take(self, reply: ReplyOrError) -> None:
        self._num_left -= 1
        if isinstance(reply, LiveSequences):
            self._found.append(reply)
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
