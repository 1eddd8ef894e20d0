"""The GPUs of a node: their number, from Ray, and their memory, which Ray does not report.

`python -m chaski.cluster.gpus` prints the total memory of this machine's GPUs in bytes.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chaski.env import child_environment

__all__ = ["GPUMemory", "hide_others"]

_log = logging.getLogger(__name__)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Seconds to wait for new nodes to report their GPU memory.
_PATIENCE = 20.0


class GPUMemory:
    """The GPU memory of nodes. Each node is queried once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Return the total GPU memory of each node of `ray.nodes`, in bytes, or 0 if unknown."""
        new = [
            each["NodeID"]
            for each in nodes
            if each["Resources"].get("GPU", 0) and each["NodeID"] not in self._known
        ]
        asked = {
            node: ray.remote(_gpu_memory)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote()
            for node in new
        }
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_PATIENCE)
        for node, reply in asked.items():
            try:
                self._known[node] = ray.get(reply, timeout=0)
            except Exception as error:  # Ray has errors of many kinds
                _log.info("the GPU memory is unknown: %s", error)
                self._known[node] = 0
        return [self._known.get(each["NodeID"], 0) for each in nodes]


def hide_others() -> None:
    """Restrict this process and its children to the GPUs that Ray assigned to it."""
    if not ray.get_gpu_ids():
        os.environ[_VISIBLE] = ""


def _gpu_memory() -> int:
    """The Ray task. Ray hides GPUs from it, so it runs another process."""
    environment = child_environment()
    environment.pop(_VISIBLE, None)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "chaski.cluster.gpus"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=True,
    )
    return int(done.stdout)


def main() -> None:
    """Print the total GPU memory in bytes."""
    from chaski.ml import usual_backend

    logging.disable(logging.WARNING)
    _, gpus = usual_backend()
    print(sum(gpu.memory_bytes for gpu in gpus))


if __name__ == "__main__":
    main()
