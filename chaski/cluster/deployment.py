"""What Ray's process does: it deploys the models that the server names, and tells who answers them."""

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

# Seconds for which nodes that are missing may still come.
_COMING = 60.0


class Deployments:
    """A connection of this process to Ray, with a deployment of Ray Serve for each model.

    address  as Ray takes it
    key      of the cluster, if it has none yet
    tell     sends something to the server; called from several threads
    """

    def __init__(self, address: str, key: bytes, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._models: dict[str, _Deployment] = {}
        self._memory: list[NodeMemory] = []
        self._gpus = GPUMemory()
        # Replicas of one machine share their weights, so that each reserving them would keep some away.
        self._reserves = address != "local"
        where: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **where)
        serve.start(proxy_location="Disabled")
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        self._directory = Directory(key)
        self.key = self._directory.key

    def nodes(self) -> list[dict[str, Any]]:
        """Describe the machines that are there now."""
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
        """Describe the replicas of all models; None for those of which the directory does not answer.

        A model that no node has the memory for is described as a replica with that problem.
        """
        found = {model: self._directory.list(model) for model in list(self._models)}
        return {
            model: None
            if members is None
            else [to_builtins(member) for member in (*members, *self._unplaced(model))]
            for model, members in found.items()
        }

    def deploy(self, model: str, number: int, generation: int, options: dict[str, Any]) -> None:
        """Have so many replicas of a model, sooner or later, and none of an older generation."""
        if model not in self._models:
            made = ReplicaOptions.of(options)
            self._models[model] = _Deployment(
                self._directory, model, made, self._has_ended, self._nodes, self._reserves
            )
        self._models[model].have(number, generation)

    def end(self, model: str) -> None:
        """End all replicas of a model, and tell when they have gone."""
        if model in self._models:
            self._models[model].end()
        else:
            self._has_ended(model)

    def drain(self, label: str) -> None:
        """Have Ray start nothing on a node any more, and Serve put other replicas in the place of its own.

        Raises ClusterError where Ray does not.
        """
        nodes = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node_label(node["NodeManagerHostname"], node["NodeManagerAddress"]) == label
        ]
        for node in nodes:
            # Ray has this as a command only. What it says last is why it does not take it.
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
                raise ClusterError(f"Ray does not drain {label}: {said[-1] if said else 'it says nothing'}")

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
    """One model. Ray is told what is wanted by a thread, one thing after the other.

    nodes    returns those that are there
    reserves False for a cluster of one machine: memory is not reserved, and it has all shards
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
        self._shards = 0  # until it is known how many there are to be
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
        """Return why no nodes can have a replica; None where some may, or might come."""
        few, short = self._missing(self._shards)
        if few is None:
            self._few_since = None
            return short
        self._few_since = self._few_since or monotonic()
        return few if monotonic() - self._few_since > _COMING else None

    def _missing(self, shards: int) -> tuple[str | None, str | None]:
        """Return why there are too few nodes, and why they have too little memory."""
        if not self._reserves:
            return None, None
        needed = self._host_bytes(shards)
        nodes, cpus, gpus = self._nodes(), self._options.options["threads"], self._gpus or 0
        short = None if needed is None else shortage(needed, cpus, nodes, gpus)
        return too_few(shards, cpus, nodes, gpus), short

    def _host_bytes(self, shards: int) -> Sequence[int] | None:
        """Return the memory that a replica takes of each of its nodes, beside that of its GPUs."""
        needed = self._memory.get(shards)
        return None if needed is None else beside_gpus(needed, self._gpus or 0, self._nodes())

    def look_again(self) -> None:
        """Try again to deploy what no nodes had the memory for."""
        if self._refused is not None:
            wanted, self._refused = self._refused, None
            self._wanted.put(wanted)

    def _follow(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                self._deploy(*wanted)
            except Exception as error:  # Ray has errors of many kinds
                _log.info("the deployment of %s: %s", self._model, error)
        try:
            serve.delete(self._model)
        except Exception as error:
            _log.warning("the replicas of %s may not have ended: %s", self._model, error)
        self._directory.forget(self._model)
        self._ended(self._model)

    def _deploy(self, number: int, generation: int) -> None:
        if not self._has_nodes():
            # Serve would give it the time to end that answers have, although it was never placed.
            self._refused = number, generation
            return
        # A server that was started again does not know how often replicas were replaced.
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
        # Serve replaces replicas of another version, one after the other. It draws a version for what has
        # none, and would replace all of them whenever their number changes.
        deployment = deployment.options(_internal=True, version=f"{self._model}.{generation}")
        application = deployment.bind(self._options, self._directory.key, generation, self._shards)
        # Waiting for replicas that there is no room for would keep them from being ended.
        serve.run_many(
            [serve.RunTarget(application, name=self._model, route_prefix=None)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def _has_nodes(self) -> bool:
        """Choose how many nodes a replica has: the first number for which there are so many with the memory.

        Returns whether there is one.
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
        """Return what Ray Serve reserves for a replica: a bundle for each node, where it has several."""
        cpus, memory = self._options.options["threads"], self._host_bytes(self._shards)
        if self._shards == 1:
            host = memory[0] or None if memory else None
            return {"ray_actor_options": {"num_cpus": cpus, "num_gpus": self._gpus, "memory": host}}
        bundles: list[dict[str, float]] = [
            {"CPU": cpus, "GPU": self._gpus or 0, "memory": memory[index] if memory else 0}
            for index in range(self._shards)
        ]
        return {
            "ray_actor_options": {"num_cpus": 0},
            "placement_group_bundles": [
                {name: value for name, value in bundle.items() if value} for bundle in bundles
            ],
            # This machine alone has all shards, in a cluster that is for trying it.
            "placement_group_strategy": "STRICT_SPREAD" if self._reserves else "PACK",
        }
