"""The settings of the server, which are read once from the environment."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Self

from msgspec import Struct, field

from chaski.address import DEFAULT_PORT, Address
from chaski.cluster.autoscaling import Bounds
from chaski.env import Environment
from chaski.errors import OptionError
from chaski.server.http.log_file import STANDARD_ERROR, LogFile
from chaski.server.network.hosts import is_loopback
from chaski.server.telemetry.otlp import traces_endpoint

__all__ = ["Settings"]

_DEFAULT_LOADED = 3
_STATES = 10 * 10**9
_FILES = 2 * 10**9
# File handles that stay free for files, workers and registries.
_SPARE_HANDLES = 256
_MANY_HANDLES = 1 << 16


class Settings(Struct, frozen=True):
    """The settings, which `chaski.env` describes. Times are in seconds; `math.inf` means without limit.

    access_log   file that gets a JSON line for each request; "-" for standard error, None for no log
    cluster      address of the Ray cluster that computes the models; None for this machine
    replicas     number of replicas of each model in the cluster
    shards       smallest and largest number of nodes that compute each replica together
    split        how these nodes divide a model: "layers" or "rows"
    gpus         GPUs for each replica, or for each of its nodes; None for one if the cluster has GPUs
    traces       URL to which spans of requests are sent; None to send none
    adapters     folder of the adapters that requests may name; None to allow none
    states       folder of saved slots; None to save none
    files        bytes that the files of batches may occupy; 0 to accept none
    mcp_servers  origins that the web page may reach in addition to this server
    context      tokens of each sequence; None where memory decides
    parallel     sequences per model; None for `most_parallel`, or fewer if memory is short
    body_memory  bytes that all request bodies together may occupy in memory
    """

    address: Address = field(default_factory=lambda: Address("127.0.0.1", DEFAULT_PORT))
    origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    is_open: bool = False
    access_log: str | None = None
    cluster: str | None = None
    replicas: Bounds = field(default_factory=Bounds)
    shards: tuple[int, int] = (1, 1)
    split: str = "layers"
    gpus: float | None = None
    traces: str | None = None
    adapters: Path | None = None
    states: Path | None = None
    states_size: int = _STATES
    files: int = _FILES
    mcp_servers: tuple[str, ...] = ()
    keep_alive: float = 300.0
    load_timeout: float = 300.0
    max_loaded: int = _DEFAULT_LOADED
    max_queue: int = 512
    context: int | None = None
    parallel: int | None = None
    most_parallel: int = 4
    private_registries: frozenset[str] = frozenset()
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    read_timeout: float = 300.0
    grace: float = 5.0
    body_memory: int = 1 << 30
    max_connections: int = field(default_factory=lambda: _usual_connections())

    @classmethod
    def of(cls, environment: Environment) -> Self:
        """Build the settings from the environment. Raises OptionError if they are invalid or unsafe."""
        settings = cls(
            address=Address.parse(environment.host or ""),
            origins=environment.origins,
            allowed_hosts=environment.allowed_hosts,
            api_keys=environment.api_keys,
            admin_keys=environment.admin_keys,
            is_open=environment.is_open,
            access_log=_log_file(environment.access_log),
            cluster=environment.cluster,
            replicas=Bounds(*environment.replicas),
            shards=environment.shards,
            split=environment.split,
            gpus=environment.gpus,
            traces=traces_endpoint(environment),
            adapters=_folder(environment.adapters),
            states=None if environment.states is None else Path(environment.states).absolute(),
            states_size=_STATES if environment.states_size is None else environment.states_size,
            files=_FILES if environment.files is None else environment.files,
            mcp_servers=environment.mcp_servers,
            keep_alive=environment.keep_alive,
            load_timeout=environment.load_timeout or math.inf,
            max_loaded=environment.max_loaded or _DEFAULT_LOADED,
            max_queue=environment.max_queue,
            context=environment.context,
            parallel=environment.parallel,
            private_registries=frozenset(environment.private_registries),
            header_timeout=environment.header_timeout,
            body_timeout=environment.body_timeout,
            read_timeout=environment.read_timeout,
            grace=environment.grace,
            body_memory=environment.body_memory << 20,
            max_connections=environment.max_connections or _usual_connections(),
        )
        settings.check()
        return settings

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.admin_keys)

    def check(self) -> None:
        """Refuse to listen on an outside address without a key, unless `is_open` allows it."""
        if not (is_loopback(self.address.host) or self.has_keys or self.is_open):
            raise OptionError(
                f"listening on {self.address.host} without keys lets anyone who can reach this machine use "
                "and change its models; set CHASKI_API_KEYS or CHASKI_ADMIN_KEYS, or set CHASKI_OPEN=1 to "
                "allow it"
            )


def _folder(path: str | None) -> Path | None:
    """Return the folder of adapters. Raises OptionError if it does not exist."""
    if path is not None and not Path(path).is_dir():
        raise OptionError(f"CHASKI_ADAPTERS is {path}, which is not a folder")
    return None if path is None else Path(path)


def _log_file(path: str | None) -> str | None:
    """Return the path of the access log. Raises OptionError if it cannot be written."""
    if path is None or path == STANDARD_ERROR:
        return path
    try:
        LogFile.check(path)
    except OSError as error:
        raise OptionError(f"CHASKI_ACCESS_LOG is {path}, which cannot be written: {error.strerror}") from None
    return os.path.abspath(path)


def _usual_connections() -> int:
    """Return the limit of file handles minus the spare ones, which take at most half of it."""
    from chaski.ml.limits import open_files

    handles = open_files() or _MANY_HANDLES
    return max(1, handles - min(_SPARE_HANDLES, handles // 2))
