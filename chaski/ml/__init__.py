"""Machine learning for inference: graphs, operations, modules, and the backends that run them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from chaski.errors import OptionError, UnsupportedError
from chaski.ml.backend import Backend, BackendOptions, CPUOptions, NodesOptions, Options
from chaski.ml.scaling import Machine

if TYPE_CHECKING:
    from chaski.ml.sharded.serving import MemberServer

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendOptions",
    "CPUOptions",
    "NodesOptions",
    "Options",
    "measure_machine",
    "open_backend",
    "serve_member",
]

BACKENDS = {
    "cpu": "chaski.ml.cpu",
    "cuda": "chaski.ml.cuda",
    "reference": "chaski.ml.reference",
    "sharded": "chaski.ml.sharded",
}
"""The module of each backend by name, which is imported when the backend is opened.

`OPTIONS` of a module are the classes of the options that it reads, and `open` takes one of each.
"""


def open_backend(name: str, *options: Options) -> Backend:
    """Open a backend: `cpu` (native), `cuda` (an NVIDIA GPU), `reference` (NumPy; what each operation means).

    Or `sharded`: several nodes, each with one of the others.

    It gets the options that are for it, defaults where none are given, and none that are for other devices.
    """
    if name not in BACKENDS:
        raise OptionError(f"backend {name!r} is unknown; known: {', '.join(BACKENDS)}")
    module = import_module(BACKENDS[name])
    given = {type(each): each for each in options}
    backend: Backend = module.open(*(given.get(kind, kind()) for kind in module.OPTIONS))
    return backend


def serve_member(
    address: str, key_file: str | None, backend: str, folders: Sequence[Path], cpu: CPUOptions
) -> MemberServer:
    """Listen at an address, host:port, and compute parts of models with a backend of this machine.

    folders  where files of models are looked for by their names

    Raises OptionError for a bad address or key, UnsupportedError for a backend that cannot have parts, and
    ClusterError where nobody can listen there.
    """
    from chaski.ml.sharded.keys import read_key
    from chaski.ml.sharded.serving import MemberServer, listening_address

    if backend == "sharded":
        raise UnsupportedError("a node computes by itself: use the backend cpu or cuda")
    host, port = listening_address(address)
    return MemberServer(
        host, port, read_key(key_file), lambda options: open_backend(backend, options, cpu), folders
    )


def measure_machine(
    processors: int, weight_bytes: int, isa: str = "auto", crowds: Sequence[int] = ()
) -> Machine:
    """Measure this machine for the scaling model, in some tenths of a second.

    `weight_bytes`: the size of a model, which may fit in a cache. `crowds`: numbers of threads that are
    larger than that of processors. What else runs shows in the result.
    Raises ValueError if this build or this machine does not have the instruction set.
    """
    from chaski.ml.cpu.thread_rates import measure_machine

    return measure_machine(processors, weight_bytes, isa, crowds)
