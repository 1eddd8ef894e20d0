"""The process that talks to Ray: `python -m chaski.cluster.ray_process DESCRIPTOR`, for `Cluster` only.

Ray ends any of its processes that cannot reach the head for a minute. The server must survive this, because
its connections to replicas do not need Ray. Ray therefore runs in a separate process, which is restarted
whenever it ends.

Both sides exchange lines of JSON over a socket: requests to Ray, and reports about the cluster.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from chaski.errors import ChaskiError, class_name, optional_package

if TYPE_CHECKING:
    from chaski.cluster.deployment import Deployments

__all__: list[str] = []

# Seconds between two reports about replicas, and between those while no model is in use.
_ROUND, _CALM_ROUND = 0.5, 2.0
# What a cluster of one machine leaves out of Ray: metrics that no server reads, and most rounds of Serve.
_LOCAL = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
}


class _Teller:
    """Sends lines, from any thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()

    def __call__(self, said: dict[str, Any]) -> None:
        try:
            with self._lock:
                self._end.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            pass  # the server has ended; the reader detects that


def main() -> None:
    """Connect to the cluster named by the first line, and carry out the following lines."""
    logging.basicConfig(level=logging.WARNING)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    end = socket.socket(fileno=descriptor)
    lines, tell = end.makefile("r"), _Teller(end)
    begin = json.loads(lines.readline())
    logging.getLogger("chaski").setLevel(begin["log_level"])
    if begin["address"] == "local":
        for name, value in _LOCAL.items():
            os.environ.setdefault(name, value)
    try:
        with optional_package("ray[serve]", "cluster", "a cluster"):
            from chaski.cluster.deployment import Deployments
        logging.getLogger("ray").setLevel(logging.WARNING)
        key = bytes.fromhex(begin["key"])
        deployments = Deployments(begin["address"], key, begin["server"], tell)
        tell({"key": deployments.key.hex(), "nodes": deployments.nodes()})
    except ChaskiError as error:
        tell({"problem": [class_name(error), str(error)]})
        return
    except Exception as error:  # Ray has errors of many kinds
        tell({"problem": ["ClusterError", f"the cluster at {begin['address']} cannot be used: {error}"]})
        return
    threading.Thread(target=_tell_members, args=(deployments, tell), daemon=True).start()
    threading.Thread(target=deployments.follow, daemon=True).start()
    for line in lines:
        said = json.loads(line)
        if "wanted" in said:
            deployments.want(said["wanted"], said["ending"], said["serial"])
        elif "idle" in said:
            deployments.reconciler.note_idle(said["idle"])
        else:
            command = deployments, said["do"], said["to"], tell
            threading.Thread(target=_do, args=command, daemon=True).start()
    import ray

    ray.shutdown()


def _do(deployments: Deployments, what: str, name: str, tell: _Teller) -> None:
    """Carry out an operator's command, and report why it was refused, or None."""
    refusal = None
    try:
        {"drain": deployments.drain, "remove": deployments.remove}[what](name)
    except Exception as error:  # Ray has errors of many kinds
        refusal = str(error)
    tell({"did": what, "to": name, "refusal": refusal})


def _tell_members(deployments: Deployments, tell: _Teller) -> None:
    told_at = 0.0
    while True:
        sleep(_ROUND)
        if deployments.reconciler.is_calm and monotonic() - told_at < _CALM_ROUND:
            continue
        told_at = monotonic()
        serial, members = deployments.reconciler.members()
        if members is not None:
            tell({"members": members, "serial": serial})


if __name__ == "__main__":
    main()
