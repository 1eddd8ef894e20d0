"""What a replica of a model reserves on its nodes, and why no nodes could ever run one."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from chaski.cluster.memory import NodeMemory, beside_gpus, host_bytes, shortage, too_few
from chaski.cluster.plan import Amount
from chaski.cluster.replica_options import ReplicaOptions

__all__ = ["Footprint"]

# Seconds to wait for missing nodes to join.
_COMING = 60.0


class Footprint:
    """The resources of a replica with these options. A thread may call `choose` while others read.

    reserves  False for a cluster of one machine, which reserves no memory and runs all shards

    `shards` is the number of nodes per replica, and `gpus` the number of GPUs on each.
    """

    def __init__(self, options: ReplicaOptions, reserves: bool) -> None:
        self._options = options
        self._reserves = reserves
        self.gpus = options.gpus
        self.shards = options.shards[0]
        self._memory: dict[int, Sequence[int] | None] = {}
        self._few_since: float | None = None

    def choose(self, nodes: Sequence[NodeMemory]) -> None:
        """Choose the smallest number of nodes per replica for which enough nodes have the memory.

        Reads the model's header in another process, at most once for each number of nodes.
        """
        least, most = self._options.shards
        if self.gpus is None:
            self.gpus = 1.0 if any(node.gpus >= 1 for node in nodes) else 0.0
        if not self._reserves:
            return
        chosen = least
        for chosen in range(least, most + 1):
            if chosen not in self._memory:
                self._memory[chosen] = host_bytes(self._options, chosen)
            if not any(self._missing(chosen, nodes)):
                break
        self.shards = chosen

    def parts(self, nodes: Sequence[NodeMemory]) -> tuple[Amount, ...]:
        """Return what each part of a replica reserves. In a cluster of one machine there is one part."""
        cores, gpus, shards = self._options.reserved_cores, self.gpus or 0.0, self.shards
        if not self._reserves:
            return (Amount(cores * shards, 0, gpus * shards),)
        memory = self._host_bytes(shards, nodes) or [0] * shards
        return tuple(Amount(cores, num_bytes, gpus) for num_bytes in memory)

    def reservation(self, nodes: Sequence[NodeMemory]) -> dict[str, Any]:
        """Return the options of Ray Serve for a replica, with one bundle for each of several nodes."""
        shards, parts = self.shards, self.parts(nodes)
        if shards == 1:
            (part,) = parts
            return {
                "ray_actor_options": {
                    "num_cpus": part.cores,
                    "num_gpus": part.gpus,
                    "memory": part.memory or None,
                },
                "max_replicas_per_node": self._options.per_node,
            }
        if not self._reserves:
            parts = (Amount(self._options.reserved_cores, 0, self.gpus or 0.0),) * shards
        bundles = [{"CPU": part.cores, "GPU": part.gpus, "memory": part.memory} for part in parts]
        return {
            "ray_actor_options": {"num_cpus": 0},
            "placement_group_bundles": [
                {name: value for name, value in bundle.items() if value} for bundle in bundles
            ],
            # In a test cluster on one machine, that machine runs all shards.
            "placement_group_strategy": "STRICT_SPREAD" if self._reserves else "PACK",
        }

    def fits_somewhere(self, nodes: Sequence[NodeMemory]) -> bool:
        """Return whether the nodes could run a replica if they ran nothing else."""
        return not any(self._missing(self.shards, nodes))

    def shortage(self, nodes: Sequence[NodeMemory]) -> tuple[str, str] | None:
        """Return class and message of the error if even empty nodes could not run a replica.

        Returns None if some could, or if missing nodes may still join.
        """
        few, short = self._missing(self.shards, nodes)
        if few is None:
            self._few_since = None
            return None if short is None else ("NoNodeError", short)
        self._few_since = self._few_since or monotonic()
        return ("NoReplicaError", few) if monotonic() - self._few_since > _COMING else None

    def _missing(self, shards: int, nodes: Sequence[NodeMemory]) -> tuple[str | None, str | None]:
        """Return the messages for too few nodes and for too little memory, each None if it does not apply."""
        if not self._reserves:
            return None, None
        needed = self._host_bytes(shards, nodes)
        cpus, gpus = self._options.options["threads"], self.gpus or 0
        short = None if needed is None else shortage(needed, cpus, nodes, gpus)
        return too_few(shards, cpus, nodes, gpus), short

    def _host_bytes(self, shards: int, nodes: Sequence[NodeMemory]) -> Sequence[int] | None:
        """Return the host memory that a replica needs on each of its nodes, in bytes."""
        needed = self._memory.get(shards)
        return None if needed is None else beside_gpus(needed, self.gpus or 0, nodes)
