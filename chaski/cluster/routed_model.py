"""`RoutedModel`: a model whose requests are routed to replicas, used like a `Worker`."""

from __future__ import annotations

from chaski.cluster.answers import RoutedAnswer, RoutedCall
from chaski.cluster.replicas import Losses, Replicas, ReplicaState
from chaski.errors import closed
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.blocking import ChannelMethods
from chaski.runner.channels.messages import Answerable, CallHandle, ModelCall, ReplyCallback

__all__ = ["RoutedModel"]


class RoutedModel(ChannelMethods):
    """The methods of an `LLM`, answered by replicas. Safe to use from several threads."""

    def __init__(self, replicas: Replicas) -> None:
        self._routes = replicas

    @property
    def is_running(self) -> bool:
        """True until it is closed. Lost replicas are restarted."""
        return not self._routes.is_closed

    @property
    def num_replicas(self) -> int:
        """The number of replicas that take requests, at least 1."""
        return max(1, self._routes.num_open)

    @property
    def num_waiting(self) -> int:
        """The number of calls that wait for a replica."""
        return self._routes.num_waiting

    @property
    def losses(self) -> Losses:
        """What the loss of replicas did to requests."""
        return self._routes.losses

    def replicas(self) -> list[ReplicaState]:
        """Describe the current replicas."""
        return self._routes.states()

    def asynchronous(self) -> AsyncModel:
        """The same model for event loops."""
        return AsyncModel(self)

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._routes.is_closed:
            raise closed()

    def close(self) -> None:
        """End all replicas; requests that they were answering fail with ClosedError."""
        self._routes.close()

    def _route(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Send a call to a replica, now or as soon as there is one."""
        routed = (
            RoutedAnswer(self._routes, call, put)
            if isinstance(call, Answerable)
            else RoutedCall(self._routes, call, put)
        )
        routed.begin()
        return routed
