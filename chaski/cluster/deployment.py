"""What Ray's process does: it deploys the models that the server names, and tells who answers them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

import ray
from ray import serve

from chaski.cluster.directory import NAMESPACE, Directory
from chaski.cluster.members import Member, node_label
from chaski.cluster.memory import NodeMemory, host_bytes, shortage
from chaski.cluster.replica import Replica
from chaski.cluster.replica_options import ReplicaOptions

__all__ = ["Deployments"]

_log = logging.getLogger(__name__)


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
        found = [
            {
                "name": each["NodeManagerHostname"],
                "address": each["NodeManagerAddress"],
                "cpus": int(each["Resources"].get("CPU", 0)),
            }
            for each in living
        ]
        self._memory = [
            NodeMemory(
                node_label(node["name"], node["address"]),
                node["cpus"],
                int(each["Resources"].get("memory", 0)),
            )
            for node, each in zip(found, living, strict=True)
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
            else [asdict(member) for member in (*members, *self._unplaced(model))]
            for model, members in found.items()
        }

    def deploy(self, model: str, number: int, generation: int, options: dict[str, Any]) -> None:
        """Have so many replicas of a model, sooner or later, and none of an older generation."""
        if model not in self._models:
            made = ReplicaOptions.of(options)
            self._models[model] = _Deployment(
                self._directory, model, made, self._has_ended, self._shortage if self._reserves else None
            )
        self._models[model].have(number, generation)

    def end(self, model: str) -> None:
        """End all replicas of a model, and tell when they have gone."""
        if model in self._models:
            self._models[model].end()
        else:
            self._has_ended(model)

    def _shortage(self, options: ReplicaOptions, needed: int) -> str | None:
        return shortage(needed, options.options["threads"], self._memory)

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

    missing  says of options and bytes of memory why no node has these; None where memory is not reserved
    """

    def __init__(
        self,
        directory: Directory,
        model: str,
        options: ReplicaOptions,
        ended: Callable[[str], None],
        missing: Callable[[ReplicaOptions, int], str | None] | None,
    ) -> None:
        self._directory = directory
        self._model = model
        self._options = options
        self._ended = ended
        self._missing = missing
        self._memory: int | None = None
        self._refused: tuple[int, int] | None = None
        self._wanted: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        threading.Thread(target=self._follow, name="chaski-deployment", daemon=True).start()

    def have(self, number: int, generation: int) -> None:
        self._wanted.put((number, generation))

    def end(self) -> None:
        self._wanted.put(None)

    def shortage(self) -> str | None:
        """Return why no node can have a replica; None where one may."""
        if self._missing is None or self._memory is None:
            return None
        return self._missing(self._options, self._memory)

    def look_again(self) -> None:
        """Deploy what no node had the memory for, if one has it now."""
        if self._refused is not None and self.shortage() is None:
            wanted, self._refused = self._refused, None
            self._wanted.put(wanted)

    def _follow(self) -> None:
        if self._missing is not None:
            self._memory = host_bytes(self._options)
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
        if self.shortage() is not None:
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
            ray_actor_options={"num_cpus": self._options.options["threads"], "memory": self._memory},
            health_check_period_s=5,
            health_check_timeout_s=30,
            graceful_shutdown_timeout_s=self._options.leaving_seconds,
        )
        # Serve replaces replicas of another version, one after the other. It draws a version for what has
        # none, and would replace all of them whenever their number changes.
        deployment = deployment.options(_internal=True, version=f"{self._model}.{generation}")
        application = deployment.bind(self._options, self._directory.key, generation)
        # Waiting for replicas that there is no room for would keep them from being ended.
        serve.run_many(
            [serve.RunTarget(application, name=self._model, route_prefix=None)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
