"""The work of Ray's process: its connection to Ray, the nodes, and the loop that deploys models."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import ray
from ray import serve

from chaski.cluster import applications
from chaski.cluster.directory import NAMESPACE, Directory
from chaski.cluster.gpus import GPUMemory
from chaski.cluster.members import node_label
from chaski.cluster.memory import NodeMemory
from chaski.cluster.plan import Amount, NodeRoom
from chaski.cluster.reconciler import Reconciler
from chaski.errors import ClusterError

__all__ = ["Deployments"]

_log = logging.getLogger(__name__)

# Seconds between two rounds of the loop, and between those while no model is in use. It starts at once if
# the server wants something else.
_ROUND, _CALM_ROUND = 1.0, 5.0


class Deployments:
    """A connection of this process to Ray, with an application of Ray Serve for each model.

    address  in Ray's format
    key      for the cluster, if it has none yet
    server   the name of the server
    tell     sends a message to the server; called from several threads
    """

    def __init__(self, address: str, key: bytes, server: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._gpus = GPUMemory()
        where: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **where)
        with ThreadPoolExecutor(1) as starting:  # each starts a process, which takes a second or more
            directory = starting.submit(Directory, key)
            serve.start(proxy_location="Disabled")
            self._directory = directory.result()
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        self.key = self._directory.key
        # Replicas on one machine share weights. If each reserved memory for them, fewer would fit.
        self.reconciler = Reconciler(self._directory, applications, server, address != "local", tell)
        self._is_due = threading.Event()

    def nodes(self) -> list[dict[str, Any]]:
        """Describe the current machines of the cluster, and what is free there."""
        living = [each for each in ray.nodes() if each["Alive"]]
        drained = ray._private.state.state.get_draining_nodes()
        free = ray._private.state.available_resources_per_node()
        return [
            {
                "name": each["NodeManagerHostname"],
                "address": each["NodeManagerAddress"],
                "cpus": int(each["Resources"].get("CPU", 0)),
                "memory": int(each["Resources"].get("memory", 0)),
                "gpus": each["Resources"].get("GPU", 0),
                "gpu_memory": gpu_memory,
                "is_drained": each["NodeID"] in drained,
                "free": _amount(free.get(each["NodeID"], {})),
            }
            for each, gpu_memory in zip(living, self._gpus.of(living), strict=True)
        ]

    def want(self, wanted: Sequence[Mapping[str, Any]], ending: Sequence[str], serial: int) -> None:
        """Replace everything that the server wants, see `Reconciler.want`."""
        self.reconciler.want(wanted, ending, serial)
        self._is_due.set()

    def follow(self) -> None:
        """Reconcile forever. Runs in a dedicated thread."""
        looked_at = 0.0
        while True:
            is_due = self._is_due.wait(_ROUND)
            self._is_due.clear()
            if not is_due and self.reconciler.is_calm and monotonic() - looked_at < _CALM_ROUND:
                continue
            looked_at = monotonic()
            try:
                nodes = self.nodes()
                self._tell({"nodes": nodes})
                self._reconcile(nodes)
            except Exception as error:  # Ray has errors of many kinds
                _log.info("the cluster could not be looked at: %s", error)

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

    def remove(self, name: str) -> None:
        """Delete an application that no server wants. Raises ClusterError if one wants it."""
        refusal = self.reconciler.remove(name)
        if refusal is not None:
            raise ClusterError(refusal)

    def _reconcile(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        open_nodes = [node for node in nodes if not node["is_drained"]]
        totals = [
            NodeMemory(
                node_label(node["name"], node["address"]),
                *(node[name] for name in ("cpus", "memory", "gpus", "gpu_memory")),
            )
            for node in open_nodes
        ]
        rooms = [
            NodeRoom(total.label, Amount(total.cpus, total.memory, total.gpus), Amount(**node["free"]))
            for total, node in zip(totals, open_nodes, strict=True)
        ]
        self.reconciler.round(totals, rooms)


def _amount(resources: Mapping[str, float]) -> dict[str, float]:
    """Return the free resources of a node. Ray leaves out those of which nothing is free."""
    return {
        "cores": resources.get("CPU", 0.0),
        "memory": int(resources.get("memory", 0)),
        "gpus": resources.get("GPU", 0.0),
    }
