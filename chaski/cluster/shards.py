"""The shards of a replica: Ray actors, one on each of its nodes, that compute the model together.

Ray places a whole group at once, with the replica on the node of the first shard. If a shard is lost, the
replica ends and Ray Serve places another group, which continues the running answers.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import ray
from msgspec import Struct
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from chaski.cluster.gpus import hide_others
from chaski.cluster.links import Address
from chaski.cluster.members import node_label
from chaski.cluster.named_nodes import key_of_nodes, named_nodes
from chaski.cluster.replica_options import ReplicaOptions
from chaski.env import Environment
from chaski.ml import CPUOptions, serve_member
from chaski.store.store import Store

__all__ = ["ShardGroup"]


class _Place(Struct, frozen=True):
    """The address and process of a shard."""

    address: Address
    node: str
    pid: int


class _Shard:
    """The actor: it computes parts of the model for the worker of its replica."""

    def __init__(self, options: ReplicaOptions, key: bytes) -> None:
        self._options = options
        self._key = key
        self._server: Any = None

    def listen(self) -> _Place:
        """Find the files of the model and listen. Raises the errors of finding them."""
        hide_others()
        store, node = Store.default(), ray.util.get_node_ip_address()
        folders = [file.find(store).parent for file in self._options.files.values()]
        environment = Environment.read()
        host = self._options.host or node
        self._server = serve_member(
            f"[{host}]:0" if ":" in host else f"{host}:0",
            key_of_nodes(self._key),
            environment.backend,
            folders,
            CPUOptions(self._options.options["threads"], environment.isa, environment.variants),
        )
        return _Place((host, self._server.port), node_label(socket.gethostname(), node), os.getpid())

    def stay(self) -> None:
        """Wait forever. The caller gets an error when the process ends."""
        threading.Event().wait()


class ShardGroup:
    """The shards of this process. It must be a replica with a placement group of one bundle per shard.

    While the group is open, models loaded with the backend `sharded` use these shards.

    lost  called from another thread, once, when a shard has ended by itself

    Raises the error of a shard that could not listen.
    """

    def __init__(self, options: ReplicaOptions, number: int, key: bytes, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self._is_closed = False
        self._names = ExitStack()
        self._actors = [_start(index, options, key) for index in range(number)]
        try:
            self._places: Sequence[_Place] = ray.get([actor.listen.remote() for actor in self._actors])
        except ray.exceptions.RayTaskError as error:
            self.close()
            raise error.cause from None
        addresses = [place.address for place in self._places]
        self._names.enter_context(named_nodes(addresses, options.split, key))
        threading.Thread(target=self._watch, name="chaski-shards", daemon=True).start()

    @property
    def processes(self) -> tuple[tuple[str, int], ...]:
        """The node and the process of each shard."""
        return tuple((place.node, place.pid) for place in self._places)

    def close(self) -> None:
        """End all shards."""
        self.abandon()
        for actor in self._actors:
            with suppress(Exception):  # the connection to Ray may be over
                ray.kill(actor)

    def abandon(self) -> None:
        """Leave the shards to Ray, which ends them together with this process."""
        self._is_closed = True
        self._names.close()

    def _watch(self) -> None:
        waiting = {
            actor.stay.remote(): place for actor, place in zip(self._actors, self._places, strict=True)
        }
        (ended, *_), _ = ray.wait(list(waiting), num_returns=1)
        if not self._is_closed:
            place = waiting[ended]
            self._lost(f"shard {place.pid} of node {place.node} has ended")


def _start(index: int, options: ReplicaOptions, key: bytes) -> Any:
    """Start the shard that uses a whole bundle."""
    group = ray.util.get_current_placement_group()
    bundle = dict(group.bundle_specs[index])
    return (
        ray.remote(_Shard)
        .options(
            num_cpus=bundle.pop("CPU"),
            num_gpus=bundle.pop("GPU", 0),
            memory=bundle.pop("memory", None),
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        .remote(options, key)
    )
