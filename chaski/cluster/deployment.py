"""Ray as chaski uses it: connected once, with a deployment of Ray Serve for each model."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
from ray import serve

from chaski.cluster.directory import NAMESPACE, Directory
from chaski.cluster.members import Member
from chaski.cluster.model import ClusterModel
from chaski.cluster.replica import Replica, ReplicaOptions
from chaski.cluster.replica_set import ReplicaSet
from chaski.cluster.scaling import Bounds
from chaski.cluster.shared_files import SharedFile
from chaski.errors import ClusterError
from chaski.ml.backend import ProgressCallback

__all__ = ["LOCAL", "Cluster", "Node"]

_log = logging.getLogger(__name__)

LOCAL = "local"
"""The address of a cluster that is this machine alone, and ends with this process."""

_HOST = "127.0.0.1"
# Seconds that the head of a cluster has to take a connection.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster: its name, its address, and the cores that Ray may use there."""

    name: str
    address: str
    cpus: int


class Cluster:
    """A connection of this process to Ray. `open_model` takes the place of `Worker` in a server.

    address   where the head of the cluster is, HOST:PORT, or `auto` on one of its nodes; or LOCAL
    bounds    of the number of replicas of each model
    threads   threads of each replica; None for all cores of the smallest node

    Raises ClusterError where Ray cannot be started or reached.
    """

    def __init__(self, address: str, bounds: Bounds, threads: int | None = None) -> None:
        self._is_local = address == LOCAL
        self._bounds = bounds
        where: dict[str, Any] = {"include_dashboard": False} if self._is_local else {"address": address}
        logging.getLogger("ray").setLevel(logging.WARNING)
        _check_somebody_listens(address)
        try:
            ray.init(namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **where)
            serve.start(proxy_location="Disabled")
            self._directory = Directory()
        except Exception as error:  # Ray has errors of many kinds
            raise ClusterError(f"the cluster at {address} cannot be used: {error}") from error
        self._threads = threads or min(node.cpus for node in self.nodes())

    def nodes(self) -> list[Node]:
        """Return the machines that are there now."""

        def cores(node: dict[str, Any]) -> int:
            return int(node["Resources"].get("CPU", 0))

        return [
            Node(each["NodeManagerHostname"], each["NodeManagerAddress"], cores(each))
            for each in ray.nodes()
            if each["Alive"]
        ]

    def open_model(
        self,
        path: Path,
        *,
        progress: ProgressCallback = lambda share: None,
        **options: Any,
    ) -> ClusterModel:
        """Return a model that replicas answer, as soon as some are loaded.

        `options` are those of `chaski.load`. Nodes without the file pull the model of the store that has it.
        """
        files = {"model": SharedFile.of(path)}
        for name in ("projector", "draft"):
            if options.get(name) is not None:
                files[name] = SharedFile.of(Path(options.pop(name)))
        options["threads"] = options.get("threads") or self._threads
        made = ReplicaOptions(
            model=_model_name(files, options),
            files=files,
            options={name: value for name, value in options.items() if value is not None},
            places=options.get("parallel") or 1,
            host=_HOST if self._is_local else None,
        )
        members = _Deployment(self._directory, made, self._bounds.least)
        return ClusterModel(ReplicaSet(members, self._directory.key, self._bounds, progress=progress))

    def close(self) -> None:
        """Leave the cluster; a local one ends with that."""
        ray.shutdown()


class _Deployment:
    """`Members` of a deployment. Ray is told what is wanted by a thread, one thing after the other."""

    def __init__(self, directory: Directory, options: ReplicaOptions, number: int) -> None:
        self._directory = directory
        self._options = options
        self._wanted: SimpleQueue[int | None] = SimpleQueue()
        self._wanted.put(number)
        self._thread = threading.Thread(target=self._follow, name="chaski-deployment", daemon=True)
        self._thread.start()

    def list(self) -> Sequence[Member] | None:
        """Return the replicas that have entered themselves."""
        return self._directory.list(self._options.model)

    def scale(self, number: int) -> None:
        """Have so many replicas, sooner or later."""
        self._wanted.put(number)

    def close(self) -> None:
        """End all replicas, and wait until they have gone."""
        self._wanted.put(None)
        self._thread.join()

    def _follow(self) -> None:
        while (number := self._wanted.get()) is not None:
            try:
                self._deploy(number)
            except Exception as error:  # loading failed: the replica has entered why
                _log.info("the deployment of %s: %s", self._options.model, error)
        try:
            serve.delete(self._options.model)
        except Exception as error:
            _log.warning("the replicas of %s may not have ended: %s", self._options.model, error)
        self._directory.forget(self._options.model)

    def _deploy(self, number: int) -> None:
        deployment = serve.deployment(
            Replica,
            name="replica",
            num_replicas=number,
            ray_actor_options={"num_cpus": self._options.options["threads"]},
            health_check_period_s=5,
            health_check_timeout_s=30,
            graceful_shutdown_timeout_s=self._options.leaving_seconds,
        )
        serve.run(deployment.bind(self._options), name=self._options.model, route_prefix=None)


def _check_somebody_listens(address: str) -> None:
    """Try HOST:PORT, since Ray tries it for minutes. Raises ClusterError."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return  # local, auto, or what Ray itself understands
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"the cluster at {address} cannot be used: nobody takes connections there ({error}); start its "
            f"head with `ray start --head --port {port}`, or give the address of one that runs"
        ) from None


def _model_name(files: dict[str, SharedFile], options: dict[str, Any]) -> str:
    """Return a name that stands for files and options.

    So a server that was started again finds its replicas.
    """
    said = [{name: asdict(file) for name, file in files.items()}, options]
    return f"chaski-{blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()}"
