"""The work of Ray's process: deploying the server's models and reporting their replicas."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import Any

import ray
from msgspec import to_builtins
from ray import serve

from chaski.cluster.directory import NAMESPACE, Directory
from chaski.cluster.gpus import GPUMemory
from chaski.cluster.members import Member, node_label
from chaski.cluster.memory import NodeMemory, beside_gpus, host_bytes, shortage, too_few
from chaski.cluster.replica import Replica
from chaski.cluster.replica_options import ReplicaOptions
from chaski.errors import ClusterError

__all__ = ["Deployments"]

_log = logging.getLogger(__name__)

# Seconds to wait for missing nodes to join.
_COMING = 60.0


class Deployments:
    """A connection of this process to Ray, with a deployment of Ray Serve for each model.

    address  in Ray's format
    key      for the cluster, if it has none yet
    tell     sends a message to the server; called from several threads
    """

    def __init__(self, address: str, key: bytes, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._models: dict[str, _Deployment] = {}
        self._memory: list[NodeMemory] = []
        self._gpus = GPUMemory()
        # Replicas on one machine share weights. If each reserved memory for them, fewer would fit.
        self._reserves = address != "local"
        where: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **where)
        serve.start(proxy_location="Disabled")
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        self._directory = Directory(key)
        self.key = self._directory.key

    def nodes(self) -> list[dict[str, Any]]:
        """Describe the current machines of the cluster."""
        living = [each for each in ray.nodes() if each["Alive"]]
        drained = ray._private.state.state.get_draining_nodes()
        found = [
            {
                "name": each["NodeManagerHostname"],
                "address": each["NodeManagerAddress"],
                "cpus": int(each["Resources"].get("CPU", 0)),
                "memory": int(each["Resources"].get("memory", 0)),
                "gpus": each["Resources"].get("GPU", 0),
                "gpu_memory": gpu_memory,
                "is_drained": each["NodeID"] in drained,
            }
            for each, gpu_memory in zip(living, self._gpus.of(living), strict=True)
        ]
        self._memory = [
            NodeMemory(
                node_label(node["name"], node["address"]),
                *(node[name] for name in ("cpus", "memory", "gpus", "gpu_memory")),
            )
            for node in found
            if not node["is_drained"]
        ]
        for deployment in list(self._models.values()):
            deployment.look_again()
        return found

    def members(self) -> dict[str, list[dict[str, Any]] | None]:
        """Describe the replicas of all models, or None for a model if the directory does not answer.

        A model that fits on no node is described as a replica with that problem.
        """
        found = {model: self._directory.list(model) for model in list(self._models)}
        return {
            model: None
            if members is None
            else [to_builtins(member) for member in (*members, *self._unplaced(model))]
            for model, members in found.items()
        }

    def deploy(self, model: str, number: int, generation: int, options: dict[str, Any]) -> None:
        """Request a number of replicas of a model, all of this generation or a newer one."""
        if model not in self._models:
            made = ReplicaOptions.of(options)
            self._models[model] = _Deployment(
                self._directory, model, made, self._has_ended, self._nodes, self._reserves
            )
        self._models[model].have(number, generation)

    def end(self, model: str) -> None:
        """End all replicas of a model, and report when they are gone."""
        if model in self._models:
            self._models[model].end()
        else:
            self._has_ended(model)

    def drain(self, label: str) -> None:
        """Drain a node: Ray starts nothing more there, and Serve replaces its replicas elsewhere.

        Raises ClusterError if Ray refuses.
        """
        nodes = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node_label(node["NodeManagerHostname"], node["NodeManagerAddress"]) == label
        ]
        for node in nodes:
            # Ray offers this only as a command. The last line of its output is the reason for a failure.
            command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--node-id", node]
            command += ["--address", ray.get_runtime_context().gcs_address]
            command += [
                "--reason",
                "DRAIN_NODE_REASON_PREEMPTION",
                "--reason-message",
                "chaski cluster drain",
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().splitlines()
                raise ClusterError(f"Ray does not drain {label}: {said[-1] if said else 'it gave no reason'}")

    def _nodes(self) -> Sequence[NodeMemory]:
        return self._memory

    def _unplaced(self, model: str) -> list[Member]:
        deployment = self._models.get(model)
        if deployment is None or (problem := deployment.shortage()) is None:
            return []
        return [
            Member(
                name=f"{model} without a node",
                address=("", 0),
                node="",
                pid=0,
                places=0,
                share=0.0,
                problem=("OutOfMemoryError", problem),
            )
        ]

    def _has_ended(self, model: str) -> None:
        self._models.pop(model, None)
        self._tell({"ended": model})


class _Deployment:
    """The deployment of one model. A thread sends its requests to Ray one after the other.

    nodes     returns the current nodes
    reserves  False for a cluster of one machine, which reserves no memory and runs all shards
    """

    def __init__(
        self,
        directory: Directory,
        model: str,
        options: ReplicaOptions,
        ended: Callable[[str], None],
        nodes: Callable[[], Sequence[NodeMemory]],
        reserves: bool,
    ) -> None:
        self._directory = directory
        self._model = model
        self._options = options
        self._ended = ended
        self._nodes = nodes
        self._reserves = reserves
        self._gpus = options.gpus
        self._shards = 0  # until the number is known
        self._memory: dict[int, Sequence[int] | None] = {}
        self._few_since: float | None = None
        self._refused: tuple[int, int] | None = None
        self._wanted: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        threading.Thread(target=self._follow, name="chaski-deployment", daemon=True).start()

    def have(self, number: int, generation: int) -> None:
        self._wanted.put((number, generation))

    def end(self) -> None:
        self._wanted.put(None)

    def shortage(self) -> str | None:
        """Return why no nodes can run a replica, or None if some can or may still join."""
        few, short = self._missing(self._shards)
        if few is None:
            self._few_since = None
            return short
        self._few_since = self._few_since or monotonic()
        return few if monotonic() - self._few_since > _COMING else None

    def _missing(self, shards: int) -> tuple[str | None, str | None]:
        """Return the messages for too few nodes and for too little memory, each None if it does not apply."""
        if not self._reserves:
            return None, None
        needed = self._host_bytes(shards)
        nodes, cpus, gpus = self._nodes(), self._options.options["threads"], self._gpus or 0
        short = None if needed is None else shortage(needed, cpus, nodes, gpus)
        return too_few(shards, cpus, nodes, gpus), short

    def _host_bytes(self, shards: int) -> Sequence[int] | None:
        """Return the host memory that a replica needs on each of its nodes, in bytes."""
        needed = self._memory.get(shards)
        return None if needed is None else beside_gpus(needed, self._gpus or 0, self._nodes())

    def look_again(self) -> None:
        """Retry deployments that failed for lack of memory."""
        if self._refused is not None:
            wanted, self._refused = self._refused, None
            self._wanted.put(wanted)

    def _follow(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                self._deploy(*wanted)
            except Exception as error:  # Ray has errors of many kinds
                _log.info("the deployment of %s failed: %s", self._model, error)
        try:
            serve.delete(self._model)
        except Exception as error:
            _log.warning("the replicas of %s may still be running: %s", self._model, error)
        self._directory.forget(self._model)
        self._ended(self._model)

    def _deploy(self, number: int, generation: int) -> None:
        if not self._has_nodes():
            # Serve would wait for its answers to end, although it was never placed.
            self._refused = number, generation
            return
        # A restarted server does not know the current generation.
        found = self._directory.list(self._model) or ()
        generation = max(generation, *(member.generation for member in found), 0)
        deployment = serve.deployment(
            Replica,
            name="replica",
            num_replicas=number,
            **self._resources(),
            health_check_period_s=5,
            health_check_timeout_s=30,
            graceful_shutdown_timeout_s=self._options.leaving_seconds,
        )
        # Serve replaces replicas of another version one after the other. Without a version it would choose a
        # random one, and thus replace all replicas whenever their number changes.
        deployment = deployment.options(_internal=True, version=f"{self._model}.{generation}")
        application = deployment.bind(self._options, self._directory.key, generation, self._shards)
        # Do not wait: replicas without room would otherwise block their own removal.
        serve.run_many(
            [serve.RunTarget(application, name=self._model, route_prefix=None)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def _has_nodes(self) -> bool:
        """Choose the smallest number of nodes per replica for which enough nodes have the memory.

        Returns whether such a number exists.
        """
        least, most = self._options.shards
        if self._gpus is None:
            self._gpus = 1.0 if any(node.gpus >= 1 for node in self._nodes()) else 0.0
        if not self._reserves:
            self._shards = least
            return True
        for shards in range(least, most + 1):
            if shards not in self._memory:
                self._memory[shards] = host_bytes(self._options, shards)
            if not any(self._missing(shards)):
                break
        self._shards = shards
        return not any(self._missing(shards))

    def _resources(self) -> Mapping[str, Any]:
        """Return the resources that Ray Serve reserves for a replica, with one bundle per node."""
        cpus, memory = self._options.reserved_cores, self._host_bytes(self._shards)
        if self._shards == 1:
            host = memory[0] or None if memory else None
            return {
                "ray_actor_options": {"num_cpus": cpus, "num_gpus": self._gpus, "memory": host},
                "max_replicas_per_node": self._options.per_node,
            }
        bundles: list[dict[str, float]] = [
            {"CPU": cpus, "GPU": self._gpus or 0, "memory": memory[index] if memory else 0}
            for index in range(self._shards)
        ]
        return {
            "ray_actor_options": {"num_cpus": 0},
            "placement_group_bundles": [
                {name: value for name, value in bundle.items() if value} for bundle in bundles
            ],
            # In a test cluster on one machine, that machine runs all shards.
            "placement_group_strategy": "STRICT_SPREAD" if self._reserves else "PACK",
        }
