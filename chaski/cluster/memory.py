"""The memory that a replica needs on each node, and messages for clusters that lack it.

As a program, `python -m chaski.cluster.memory SHARDS`, it reads the options of a replica as JSON and prints a
list of bytes. The deployment runs it as a separate process, because model files are untrusted.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from chaski.cluster.links import new_key
from chaski.cluster.named_nodes import key_of_nodes, named_nodes
from chaski.cluster.replica_options import ReplicaOptions
from chaski.env import child_environment
from chaski.ml.backend import HOST

__all__ = ["NodeMemory", "beside_gpus", "host_bytes", "shortage", "too_few"]

_log = logging.getLogger(__name__)

_LONGEST = 60.0
_HERE = "127.0.0.1:0"
_USED_OPTIONS = (
    *("context", "parallel", "threads", "num_batch", "kv_type", "flash_attention"),
    *("num_gpu", "main_gpu", "tensor_split"),
)


class NodeMemory(Struct, frozen=True):
    """A node by label: the cores, memory and GPUs that Ray may assign there.

    `gpu_memory`: total bytes of its GPUs, or 0 if unknown.
    """

    label: str
    cpus: int
    memory: int
    gpus: float = 0
    gpu_memory: int = 0


def host_bytes(options: ReplicaOptions, shards: int = 1) -> Sequence[int] | None:
    """Return the bytes of host memory that a replica needs on each node, including all weights.

    On CPUs they equal those of `chaski show --memory`. Returns None if they cannot be determined; a failing
    load then reports the reason.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "chaski.cluster.memory", str(shards)],
            input=json.dumps(to_builtins(options)),
            env=child_environment() | {"CHASKI_BACKEND": "cpu"},
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=True,
        )
        found: Sequence[int] = json.loads(done.stdout)
        return found
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _log.info("the memory that %s needs could not be computed: %s", options.model, error)
        return None


def beside_gpus(needed: Sequence[int], gpus: float, nodes: Sequence[NodeMemory]) -> Sequence[int]:
    """Return the bytes of `needed` that do not fit on GPUs, with `gpus` of them per part.

    All GPUs are assumed to have the memory of the smallest one.
    """
    least = min((node.gpu_memory / node.gpus for node in nodes if node.gpus and node.gpus >= gpus), default=0)
    return [max(0, num_bytes - int(gpus * least)) for num_bytes in needed]


def shortage(needed: Sequence[int], cpus: int, nodes: Sequence[NodeMemory], gpus: float = 0) -> str | None:
    """Return the message for a replica that no nodes can ever run, or None if some can.

    The replica needs `cpus` cores, `gpus` GPUs and `needed` bytes of memory on its nodes. Nodes with fewer
    cores or GPUs do not count.
    """
    fitting = sorted(_fitting(cpus, gpus, nodes), key=lambda node: -node.memory)
    pairs = zip(sorted(needed, reverse=True), fitting, strict=False)
    short = [(num_bytes, node) for num_bytes, node in pairs if num_bytes > node.memory]
    if not short:
        return None
    bytes_needed, node = short[0]
    if len(needed) == 1:
        where, other, more = "", "any other node", "start a node with more: `ray start --memory BYTES`"
    else:
        where, other = " on a node", "any other node that is left"
        more = "start more nodes, and split a replica over more of them (--shards)"
    beside = " beside its GPUs" if gpus else ""
    return (
        f"a replica needs {bytes_needed / 1e9:.3f} GB of memory{where}{beside}, and Ray has "
        f"{node.memory / 1e9:.3f} GB on {node.label}, no more on {other}; use a smaller context, fewer "
        f"parallel sequences or a smaller model, or {more}"
    )


def too_few(shards: int, cpus: int, nodes: Sequence[NodeMemory], gpus: float = 0) -> str | None:
    """Return the message if fewer nodes than a replica needs have these cores and GPUs, else None.

    A replica of one node without GPUs gets no message, because Ray waits for a node.
    """
    number = len(_fitting(cpus, gpus, nodes))
    if number >= shards or (shards == 1 and not gpus):
        return None
    with_gpus = f" and {gpus:g} GPUs" if gpus else ""
    settings = "--shards, CHASKI_THREADS, --gpus" if gpus else "--shards, CHASKI_THREADS"
    return (
        f"a replica takes {shards} nodes of {cpus} cores{with_gpus} ({settings}), and the cluster has "
        f"{number}; start more: `ray start --address HEAD`"
    )


def _fitting(cpus: int, gpus: float, nodes: Sequence[NodeMemory]) -> list[NodeMemory]:
    return [node for node in nodes if node.cpus >= cpus and node.gpus >= gpus]


def _worked_out(options: ReplicaOptions, shards: int) -> Sequence[int]:
    if shards == 1:
        return [_bytes_on(options, [HOST])[0]]
    with _nodes_here(options, shards) as names:
        return _bytes_on(options, names, "sharded")


def _bytes_on(options: ReplicaOptions, devices: Sequence[str], backend: str | None = None) -> Sequence[int]:
    from chaski.runner.loading.devices import reserve
    from chaski.runner.loading.files import OpenedModel
    from chaski.runner.loading.parts import ModelParts, PartOptions
    from chaski.store.model import find_model

    given: dict[str, Any] = {name: options.options.get(name) for name in _USED_OPTIONS}
    given |= {name: file.path for name, file in options.files.items()}
    opened = OpenedModel.of(find_model(given.pop("model")))
    parts = ModelParts.of(
        opened, PartOptions(**{name: value for name, value in given.items() if value is not None})
    )
    reserved = reserve(parts, backend)
    try:
        needs = reserved.needs
        # Weights that a process on this machine shares must be loaded on another node.
        return [needs.total.get(device, 0) + needs.shared.get(device, 0) for device in devices]
    finally:
        reserved.close()


@contextmanager
def _nodes_here(options: ReplicaOptions, number: int) -> Iterator[Sequence[str]]:
    """Simulate `number` nodes in this process; yield the names of their memories."""
    from chaski.env import Environment
    from chaski.ml import CPUOptions, serve_member

    environment, key = Environment.read(), new_key()
    cpu = CPUOptions(options.options["threads"], environment.isa, environment.variants)
    folders = [Path(file.path).parent for file in options.files.values()]
    with ExitStack() as undo:
        ports = []
        for _ in range(number):
            server = serve_member(_HERE, key_of_nodes(key), environment.backend, folders, cpu)
            undo.callback(server.close)
            ports.append(server.port)
        undo.enter_context(named_nodes([("127.0.0.1", port) for port in ports], options.split, key))
        yield [f"127.0.0.1:{port}" for port in ports]


def main() -> None:
    """Print the answer to one request. Exits with an error if there is none."""
    logging.disable(logging.WARNING)
    print(json.dumps(_worked_out(ReplicaOptions.of(json.load(sys.stdin)), int(sys.argv[1]))))


if __name__ == "__main__":
    main()
