"""`NodesModel`: a model that nodes without Ray compute together, used like a `Worker`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaski.cluster.replicas import Ended
from chaski.cluster.routed_model import RoutedModel
from chaski.cluster.split_replica import SplitReplica
from chaski.cluster.watched_nodes import NodeAddress, WatchedNodes
from chaski.cluster.watched_worker import NOTHING
from chaski.cluster_key import read_key
from chaski.env import Environment
from chaski.ml.backend import ProgressCallback
from chaski.runner.adapters.adapter_calls import LoadAdapter, UnloadAdapter
from chaski.runner.channels.messages import (
    CallHandle,
    Describe,
    Info,
    LookLive,
    ModelCall,
    ReplyCallback,
)
from chaski.runner.channels.worker.client import Worker

__all__ = ["NodesModel", "nodes_model_opener"]


class NodesModel(RoutedModel):
    """The methods of an `LLM`, computed by several nodes. Safe to use from several threads.

    If a node or the worker is lost, the model is loaded again on the nodes that are left, or on all of them
    if the node is back soon. Its answers then continue, and their readers see a pause.
    """

    def __init__(self, replica: SplitReplica) -> None:
        super().__init__(replica)
        self._replica = replica

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Start to answer a call, see `Channel`. Raises OptionError for values that cannot be sent, and
        ClosedError after `close`.
        """
        self.check_open()
        peer, info = self._replica.any_peer(), self._replica.info
        if isinstance(call, LoadAdapter | UnloadAdapter):
            self._replica.adapters.note(call)
        elif peer is not None and isinstance(call, LookLive):
            return peer.start(call, lambda reply: put(self._replica.named(reply)))
        elif peer is None and isinstance(call, LookLive):
            put(NOTHING)
            return Ended()
        elif peer is None and info is not None and isinstance(call, Describe):
            put(info)  # sizes stay the same when the model is loaded again
            return Ended()
        return self._route(call, put)


def nodes_model_opener(environment: Environment) -> Callable[..., NodesModel]:
    """Return a function that opens models on the nodes of the environment, for a server.

    Raises OptionError if the key cannot be read.
    """
    key_file = environment.nodes_key
    nodes = WatchedNodes([NodeAddress(*each) for each in environment.nodes], read_key(key_file))
    shared = {"CHASKI_SPLIT": environment.split, "CHASKI_NODES_KEY": str(key_file)}

    def open_model(path: Path, *, progress: ProgressCallback, **options: Any) -> NodesModel:
        def open(some: Sequence[NodeAddress], known: Info | None, progress: ProgressCallback) -> Worker:
            sizes = {} if known is None else {"context": known.context, "parallel": known.parallel or None}
            named = shared | {"CHASKI_NODES": ",".join(map(str, some))}
            return Worker(path, progress=progress, restarts=False, environment=named, **{**options, **sizes})

        return NodesModel(SplitReplica(nodes, open, progress))

    return open_model
