"""The server's connection to a cluster: a process that talks to Ray and is restarted whenever it ends."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from chaski import errors
from chaski.cluster.autoscaling import Bounds
from chaski.cluster.links import new_key
from chaski.cluster.members import Member
from chaski.cluster.model import ClusterModel
from chaski.cluster.overview import Node, RunningApplication
from chaski.cluster.replica_options import ReplicaOptions
from chaski.cluster.replica_set import ReplicaSet
from chaski.cluster.shared_files import SharedFile
from chaski.env import Environment, child_environment
from chaski.errors import ChaskiError, ClusterError
from chaski.ml.backend import ProgressCallback
from chaski.names import AUTO
from chaski.standard_streams import open_missing

__all__ = ["LOCAL", "Cluster"]

_log = logging.getLogger(__name__)

LOCAL = "local"
"""The address of a cluster on this machine only. It ends with this process."""

_HOST = "127.0.0.1"
# Seconds to wait for the head of a cluster to accept a connection.
_PATIENCE = 5.0
# Seconds of silence after which Ray's process is ended. It normally reports twice a second.
_SILENCE = 90.0
# Seconds within which it must connect. A busy machine took two minutes to start Ray.
_STARTING = 300.0
# Seconds after which its report about replicas is considered outdated.
_FRESH = 10.0
# Seconds without replicas or nodes after which the head counts as lost. While no model is in use, nodes are
# reported every 5 s.
_SILENT_HEAD = 15.0
# Seconds between two attempts to connect again.
_PAUSE = 3.0
_LEAVING = 20.0
# Seconds to wait for Ray's reply to a command of an operator.
_COMMAND = 30.0


class _Wanted(Struct, frozen=True):
    """The required replicas of a model: their number and minimum generation."""

    options: ReplicaOptions
    number: int
    generation: int


class Cluster:
    """A connection to Ray. A server uses `open_model` instead of `Worker`.

    address  of the cluster's head: HOST:PORT, `auto` on one of its nodes, or LOCAL
    bounds   of the number of replicas of each model
    threads  of each replica; None for all cores of the smallest node
    shards   minimum and maximum number of nodes per replica, each with `threads` threads; the smallest number
             with enough memory is used
    split    how nodes divide a model: by layers or rows
    gpus     of each replica, or of each of its nodes; None uses one GPU if the cluster has any that the
             environment's backend supports
    models   number of models that share the cores of a node
    server   the name of this server in the cluster; one that starts again has the same name. By default that
             of this machine

    Raises ClusterError if Ray cannot be started or reached, and MissingPackageError if it is not installed.
    """

    def __init__(
        self,
        address: str,
        bounds: Bounds,
        threads: int | None = None,
        shards: tuple[int, int] = (1, 1),
        split: str = "layers",
        gpus: float | None = None,
        models: int = 1,
        server: str | None = None,
    ) -> None:
        self._address = address
        self._server = server or socket.gethostname()
        self._num_models = models
        self._bounds = bounds
        self._shards = shards
        self._split = split
        self._gpus = gpus
        self._lock = threading.Condition()
        self._is_closed = threading.Event()
        # The models that need replicas, and the models whose replicas must end.
        self._wanted: dict[str, _Wanted] = {}
        self._models: dict[str, ClusterModel] = {}
        # The serial of the first message that wants each model. Older reports describe an earlier one.
        self._wanted_since: dict[str, int] = {}
        self._serial = 0
        self._ending: set[str] = set()
        # For each command of an operator and its object: the reason why it was refused, or None.
        self._did: dict[tuple[str, str], str | None] = {}
        self._applications: list[RunningApplication] = []
        self._members: dict[str, list[Member] | None] = {}
        self._heard_at = self._looked_at = monotonic()
        self._nodes: list[Node] = []
        self._is_connected = False
        self.key = new_key()
        self._process: _RayProcess
        self._connect()
        self._threads = threads or self._least_cores()
        self._thread = threading.Thread(target=self._follow, name="chaski-cluster", daemon=True)
        self._thread.start()

    def nodes(self) -> list[Node]:
        """Return the machines of the cluster, as of the last query to Ray."""
        return list(self._nodes)

    def applications(self) -> list[RunningApplication]:
        """Return the models that run in the cluster, as of the last query to Ray."""
        return list(self._applications)

    def _least_cores(self) -> int:
        return min((node.cpus for node in self._nodes if node.cpus), default=1)

    def problem(self) -> str | None:
        """Return why no model can be loaded now, or None. Replicas that run may still answer."""
        silent = monotonic() - min(self._heard_at, self._looked_at)
        if not self._is_connected or silent >= _SILENT_HEAD:
            return f"the cluster's head has not been reached for {silent:.0f} s"
        if not any(node.cpus and not node.is_drained for node in self._nodes):
            return "no node of the cluster has cores for models"
        return None

    def open_model(
        self,
        path: Path,
        *,
        progress: ProgressCallback = lambda share: None,
        **options: Any,
    ) -> ClusterModel:
        """Return a model served by replicas. It answers as soon as one of them is loaded.

        `options` are those of `chaski.load`. Nodes without the file pull the stored model that contains it.
        """
        files = {"model": SharedFile.of(path)}
        for name in ("projector", "draft"):
            if options.get(name) is not None:
                files[name] = SharedFile.of(Path(options.pop(name)))
        options["threads"] = options.get("threads") or self._threads
        made = ReplicaOptions(
            files=files,
            options={name: value for name, value in options.items() if value is not None},
            places=options.get("parallel") or 1,
            host=_HOST if self._address == LOCAL else None,
            shards=self._shards,
            split=self._split,
            gpus=_gpus(options) if self._gpus is None else self._gpus,
            sharing=self._num_models,
            per_node=max(1, self._least_cores() // options["threads"]),
        )
        self.deploy(made, self._bounds.least)
        model = ClusterModel(ReplicaSet(_Members(self, made), self._bounds, progress=progress))
        self._models[made.model] = model
        return model

    def list(self, model: str) -> Sequence[Member] | None:
        """Return the replicas of a model, or None while they are unknown."""
        with self._lock:
            return self._members.get(model) if monotonic() - self._heard_at < _FRESH else None

    def deploy(self, options: ReplicaOptions, number: int) -> None:
        """Request a number of replicas of a model. The change takes effect later."""
        with self._lock:
            before = self._wanted.get(options.model)
            self._want(_Wanted(options, number, before.generation if before is not None else 0))

    def replace(self, options: ReplicaOptions, generation: int) -> None:
        """Replace all older replicas of a model with replicas of a generation, a few at a time.

        Raises ClusterError while there is no connection to Ray.
        """
        with self._lock:
            if not self._is_connected:
                raise ClusterError(
                    "nobody can replace a replica now: the connection to Ray is being made again"
                )
            if (before := self._wanted.get(options.model)) is not None:
                self._want(replace(before, generation=generation))

    def drain(self, name: str) -> Node:
        """Stop starting replicas on a node, and replace its replicas by others elsewhere.

        name  the node's name, its address or both, as `Node.label` has them

        Raises ClusterError if the name does not match exactly one of several nodes, or if Ray refuses.
        """
        nodes = self.nodes()
        found = [node for node in nodes if name in (node.name, node.address, node.label)]
        if len(found) != 1:
            what = "no node has" if not found else f"{len(found)} nodes have"
            raise ClusterError(
                f"{what} the name or address {name!r:.100}: the cluster has "
                f"{', '.join(node.label for node in nodes)}"
            )
        (node,) = found
        if not any(other.cpus and not other.is_drained for other in nodes if other is not node):
            raise ClusterError(f"no other node than {node.label} has cores for its replicas: start one first")
        self._do("drain", node.label)
        return node

    def remove(self, application: str) -> None:
        """Delete an application that no server wants.

        Raises ClusterError if there is none with this name, or if a server wants it.
        """
        self._do("remove", application)

    def _do(self, what: str, name: str) -> None:
        """Let Ray's process carry out a command. Raises ClusterError if it is refused."""
        with self._lock:
            self._did.pop((what, name), None)
            self._process.tell({"do": what, "to": name})
            until = monotonic() + _COMMAND
            while (what, name) not in self._did:
                if not self._is_connected or monotonic() > until:
                    raise ClusterError(f"Ray does not reply to {what} {name}; you can try again")
                self._lock.wait(1.0)
            problem = self._did[what, name]
        if problem is not None:
            raise ClusterError(problem)

    def end(self, options: ReplicaOptions) -> None:
        """End all replicas of a model, and wait until they are gone while Ray is reachable."""
        with self._lock:
            self._wanted.pop(options.model, None)
            self._models.pop(options.model, None)
            self._wanted_since.pop(options.model, None)
            self._members.pop(options.model, None)
            self._ending.add(options.model)
            self._tell_wanted()
            until = monotonic() + options.leaving_seconds
            while options.model in self._ending and self._is_connected and monotonic() < until:
                self._lock.wait(1.0)

    def close(self) -> None:
        """Leave the cluster. A local cluster ends."""
        self._is_closed.set()
        self._process.end()
        self._thread.join()

    def _want(self, wanted: _Wanted) -> None:
        self._wanted[wanted.options.model] = wanted
        self._ending.discard(wanted.options.model)
        self._tell_wanted()
        self._wanted_since.setdefault(wanted.options.model, self._serial)

    def _tell_wanted(self) -> None:
        """Tell Ray's process everything that is wanted, and what it must end."""
        self._serial += 1
        wanted = [to_builtins(each) for each in self._wanted.values()]
        self._process.tell({"wanted": wanted, "ending": list(self._ending), "serial": self._serial})

    def _tell_use(self) -> None:
        """Tell for how many seconds each model has been idle, or None while it is in use."""
        if idle := {name: model.idle_seconds() for name, model in list(self._models.items())}:
            self._process.tell({"idle": idle})

    def _connect(self) -> None:
        """Start a process that connects to Ray. Raises its connection error."""
        _check_somebody_listens(self._address)
        self._process = _RayProcess(self._address, self.key, self._server)
        try:
            self._take(self._process.greeting())
        except ChaskiError:
            self._process.close()
            raise
        self._is_connected = True

    def _follow(self) -> None:
        while not self._is_closed.is_set():
            for said in self._process.said():
                self._take(said)
            self._is_connected = False
            self._process.close()
            if not self._is_closed.is_set():
                _log.warning("the connection to Ray has ended; answers go on, and it is tried again")
                self._connect_again()

    def _connect_again(self) -> None:
        while not self._is_closed.wait(_PAUSE):
            try:
                self._connect()
            except ChaskiError as error:
                _log.info("%s", error)
                continue
            with self._lock:
                self._tell_wanted()
            if self._is_closed.is_set():  # meanwhile
                self._process.end()
            _log.warning("the connection to Ray is restored")
            return

    def _take(self, said: dict[str, Any]) -> None:
        if "problem" in said:
            kind, message = said["problem"]
            raise getattr(errors, kind)(message)
        with self._lock:
            if "key" in said:
                self.key = bytes.fromhex(said["key"])
            if "nodes" in said:
                self._looked_at = monotonic()
                self._nodes = [convert(node, Node) for node in said["nodes"]]
            if "applications" in said:
                self._applications = convert(said["applications"], list[RunningApplication])
            if "members" in said:
                self._heard_at = monotonic()
                self._members = {
                    model: None if members is None else list(map(_member, members))
                    for model, members in said["members"].items()
                    if said["serial"] >= self._wanted_since.get(model, 0)
                }
            if "did" in said:
                self._did[said["did"], said["to"]] = said["refusal"]
                self._lock.notify_all()
            if "ended" in said:
                self._ending.discard(said["ended"])
                self._lock.notify_all()
        if "members" in said:
            self._tell_use()
        for name in said.get("unload", ()):
            if (model := self._models.get(name)) is not None:
                model.make_room()


class _Members:
    """The `Members` of one model."""

    def __init__(self, cluster: Cluster, options: ReplicaOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._model = options.model

    @property
    def key(self) -> bytes:
        return self._cluster.key

    def list(self) -> Sequence[Member] | None:
        return self._cluster.list(self._model)

    def scale(self, number: int) -> None:
        self._cluster.deploy(self._options, number)

    def replace(self, generation: int) -> None:
        self._cluster.replace(self._options, generation)

    def close(self) -> None:
        self._cluster.end(self._options)


class _RayProcess:
    """A process that talks to Ray (`ray_process.py`), from its start to its end."""

    def __init__(self, address: str, key: bytes, server: str) -> None:
        open_missing()  # otherwise a socket could get the number of a standard stream
        self._end, theirs = socket.socketpair()
        self._lines = self._end.makefile("rb")
        # Ray reads this when it is imported. By default, a cluster accepts only clients with its token.
        mode = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token")}
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "chaski.cluster.ray_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # the standard output belongs to the parent's own data
                pass_fds=[theirs.fileno()],
                env=child_environment() | mode,
                # Ctrl-C on a terminal signals the whole process group. Only the parent should handle it.
                process_group=0,
            )
        level = _log.getEffectiveLevel()
        self.tell({"address": address, "key": key.hex(), "server": server, "log_level": level})

    def greeting(self) -> dict[str, Any]:
        """Return its first message: that it is connected, or why not."""
        self._end.settimeout(_STARTING)
        for said in self.said():
            self._end.settimeout(_SILENCE)
            return said
        raise ClusterError("the process that talks to Ray has ended; its log may say why")

    def said(self) -> Iterator[dict[str, Any]]:
        """Yield its messages until it ends or is silent for too long."""
        try:
            for line in self._lines:
                yield json.loads(line)
        except (OSError, ValueError) as error:  # a time-out, or half a line
            _log.info("cannot read a message of Ray's process: %s", error)

    def tell(self, wanted: dict[str, Any]) -> None:
        """Send a message. Does nothing if the process has ended."""
        try:
            self._end.sendall(json.dumps(wanted).encode() + b"\n")
        except OSError as error:
            _log.info("cannot send a message to Ray's process: %s", error)

    def close(self) -> None:
        """End the process. Only the thread that reads its messages may call this."""
        self.end()
        self._lines.close()
        self._end.close()

    def end(self) -> None:
        """Ask it to end, and wait. Does nothing the second time."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)
        try:
            self._popen.wait(_LEAVING)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def _member(values: dict[str, Any]) -> Member:
    host, port = values["address"]
    problem = values["problem"]
    return Member(
        **{
            **values,
            "address": (host, port),
            "problem": None if problem is None else tuple(problem),
            "shards": tuple((node, pid) for node, pid in values["shards"]),
        }
    )


def _gpus(options: Mapping[str, Any]) -> float | None:
    """Return the GPUs of a replica with these options, or None if it uses one GPU when available."""
    backend = options.get("backend") or Environment.read().backend
    if backend == "cuda":
        return 1.0
    return None if backend == AUTO and options.get("num_gpu") != 0 else 0.0


def _check_somebody_listens(address: str) -> None:
    """Test HOST:PORT, because Ray itself retries for minutes. Raises ClusterError."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return  # local, auto, or another form that Ray accepts
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"the cluster at {address} cannot be used: nobody takes connections there ({error}); start its "
            f"head with `ray start --head --port {port}`, or give the address of one that runs"
        ) from None
