"""`WatchedNodes`: which nodes of split models can be reached. The log gets one line when that changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from msgspec import Struct

from chaski.errors import ClusterError
from chaski.ml import check_member

__all__ = ["NodeAddress", "WatchedNodes"]

_log = logging.getLogger(__name__)

# Seconds for which an answer is good enough for another model of the same nodes.
_FRESH = 0.4


class NodeAddress(Struct, frozen=True):
    """The address of a `chaski shard`, and its share of models; None for the usual share."""

    host: str
    port: int
    share: float | None = None

    @property
    def name(self) -> str:
        """The address as CHASKI_NODES contains it, without the share."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.name if self.share is None else f"{self.name}={self.share:g}"


class WatchedNodes:
    """The nodes of a server's models. Safe to use from several threads.

    nodes  in the order in which they compute
    key    the key that they know
    """

    def __init__(self, nodes: Sequence[NodeAddress], key: bytes) -> None:
        self.all = tuple(nodes)
        self._key = key
        self._lock = threading.Lock()
        self._asked_at = -_FRESH
        self._problems: dict[NodeAddress, str] = {}

    @property
    def trouble(self) -> str:
        """Why nodes cannot be reached; empty if all were reached last time."""
        return "; ".join(self._problems.values())

    def reachable(self) -> Sequence[NodeAddress]:
        """Connect to all nodes and return those that answer and know the key. Takes up to some seconds."""
        with self._lock:
            if monotonic() - self._asked_at >= _FRESH:
                with ThreadPoolExecutor(len(self.all), "chaski-probe") as threads:
                    found = list(threads.map(self._problem_of, self.all))
                for node, problem in zip(self.all, found, strict=True):
                    self._note(node, problem)
                self._asked_at = monotonic()
            return [node for node in self.all if node not in self._problems]

    def _problem_of(self, node: NodeAddress) -> str | None:
        try:
            check_member(node.host, node.port, self._key)
        except ClusterError as error:
            return str(error)
        return None

    def _note(self, node: NodeAddress, problem: str | None) -> None:
        is_known = node in self._problems
        if problem is not None:
            self._problems[node] = problem
            if not is_known:
                _log.warning("%s; it is tried again until it answers", problem)
        elif is_known:
            del self._problems[node]
            _log.warning("node %s answers again", node.name)
