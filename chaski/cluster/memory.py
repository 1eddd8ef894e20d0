"""The memory of a replica: what it takes on its node, and why no node has enough.

As a program, `python -m chaski.cluster.memory`, it reads the options of a replica as JSON and writes a number
of bytes: whoever deploys replicas asks in a process of its own, since files of models come from strangers.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chaski.cluster.replica_options import ReplicaOptions
from chaski.env import without_secrets

__all__ = ["NodeMemory", "host_bytes", "shortage"]

_log = logging.getLogger(__name__)

_LONGEST = 60.0
_USED_OPTIONS = (
    *("context", "parallel", "threads", "num_batch", "kv_type", "flash_attention"),
    *("num_gpu", "main_gpu", "tensor_split"),
)


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """A node, by what replicas call it: the cores and the bytes of memory that Ray may give away there."""

    label: str
    cpus: int
    memory: int


def host_bytes(options: ReplicaOptions) -> int | None:
    """Return the bytes that a replica takes of its node's memory, with all of its weights.

    They are those of `chaski show --memory`, for the backend of this machine. Returns None where they cannot
    be worked out; then loading says why, if it fails.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "chaski.cluster.memory"],
            input=json.dumps(asdict(options)),
            env=without_secrets(os.environ) | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=True,
        )
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _log.info("the memory of %s could not be worked out: %s", options.model, error)
        return None


def shortage(needed: int, cpus: int, nodes: Sequence[NodeMemory]) -> str | None:
    """Return the message for a replica that no node can ever have; None where one could.

    It takes `needed` bytes and so many cores. Nodes with fewer cores do not count.
    """
    fitting = [node for node in nodes if node.cpus >= cpus]
    if not fitting or any(node.memory >= needed for node in fitting):
        return None
    most = max(fitting, key=lambda node: node.memory)
    return (
        f"a replica needs {needed / 1e9:.3f} GB of memory, and Ray has {most.memory / 1e9:.3f} GB on "
        f"{most.label}, no more on any other node; use a smaller context, fewer parallel sequences or a "
        "smaller model, or start a node with more: `ray start --memory BYTES`"
    )


def _worked_out(options: ReplicaOptions) -> int:
    from chaski.ml.backend import HOST
    from chaski.runner.loading.devices import reserve
    from chaski.runner.loading.files import OpenedModel
    from chaski.runner.loading.parts import ModelParts
    from chaski.store.model import find_model

    given: dict[str, Any] = {name: options.options.get(name) for name in _USED_OPTIONS}
    given |= {name: file.path for name, file in options.files.items()}
    opened = OpenedModel.of(find_model(given.pop("model")))
    parts = ModelParts.of(opened, **{name: value for name, value in given.items() if value is not None})
    reserved = reserve(parts)
    try:
        needs = reserved.needs
        # Weights that a process has here already have to be read on another node.
        return needs.total.get(HOST, 0) + needs.shared.get(HOST, 0)
    finally:
        reserved.close()


def main() -> None:
    """Answer one question. Ends with an error where there is no answer."""
    logging.disable(logging.WARNING)
    print(_worked_out(ReplicaOptions.of(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
