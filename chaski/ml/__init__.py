"""Machine learning for inference: graphs, operations, modules, and the backends that run them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaski.env import Environment
from chaski.errors import ChaskiError, OptionError, UnsupportedError
from chaski.ml.backend import (
    Backend,
    BackendOptions,
    CPUOptions,
    Device,
    GPUOptions,
    NodesOptions,
    Options,
    Override,
)
from chaski.ml.graph import Weight
from chaski.ml.performance_model import Machine
from chaski.ml.rates import DeviceRates
from chaski.names import AUTO

if TYPE_CHECKING:
    from chaski.formats.gguf import TensorInfo
    from chaski.formats.quant import QuantType
    from chaski.ml.sharded.layers import LayerSplit
    from chaski.ml.sharded.serving import MemberServer

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendOptions",
    "CPUOptions",
    "GPUOptions",
    "NodesOptions",
    "Options",
    "check_member",
    "gpus_of",
    "has_gpu_driver",
    "measure_machine",
    "memory_bandwidth",
    "open_backend",
    "open_together",
    "processor_rates",
    "serve_member",
    "split_layers",
    "usual_backend",
    "usual_gpus",
]

_log = logging.getLogger(__name__)

BACKENDS = {
    "cpu": "chaski.ml.cpu",
    "cuda": "chaski.ml.cuda",
    "reference": "chaski.ml.reference",
    "sharded": "chaski.ml.sharded",
}
"""The module of each backend by name. It is imported when the backend is opened.

`OPTIONS` of a module lists the classes of options that the backend reads; `open` takes one of each.
"""


def open_backend(name: str, *options: Options) -> Backend:
    """Open a backend by name.

    cpu        the native kernels
    cuda       an NVIDIA GPU, or several
    reference  NumPy, which defines each operation
    sharded    several nodes, each with one of the other backends

    The backend receives the options of the kinds that it reads, or their defaults. Other options are ignored.
    """
    module = _module(name)
    given = {type(each): each for each in options}
    backend: Backend = module.open(*(given.get(kind, kind()) for kind in module.OPTIONS))
    return backend


def open_together(
    devices: Mapping[str, Callable[[BackendOptions], Backend]],
    options: BackendOptions,
    name: str,
    split: str,
    shares: Sequence[float] | None,
    behind_first: int | None = None,
    overrides: Sequence[Override] = (),
    expert_slots: int = 0,
) -> Backend:
    """Open several devices of this machine as one backend, with one thread per device.

    devices  the function that opens each device, by the device's name
    name     the backend's name for `open_backend`
    split    `layers` or `rows`
    shares   each device's share of the layers; None for as much as its free memory allows
    behind_first  number of trailing layers that the devices after the first share in any case, counting the
                  output as one; None for any
    overrides  tensors that are on one of the devices wherever their layers are
    expert_slots  number of experts of a layer that are with the rest of the layer, too, if `overrides` place
                  its experts elsewhere

    Raises what opening a device raises.
    """
    from chaski.ml.sharded import open_here

    return open_here(devices, options, name, split, shares, behind_first, overrides, expert_slots)


def split_layers(
    tensors: Mapping[str, TensorInfo],
    memory: Sequence[int],
    shares: Sequence[float] | None,
    behind_first: int | None = None,
    overrides: Sequence[tuple[str, int]] = (),
    expert_slots: int = 0,
) -> LayerSplit:
    """Return the layers of devices with this free memory in bytes, as `open_together` divides them.

    `overrides` are patterns of names with the number of a device; the others are as there.
    """
    from chaski.ml.sharded.layers import LayerSplit
    from chaski.ml.sharded.shares import usual_shares

    if shares is None:
        num_bytes = sum(info.nbytes for info in tensors.values())
        shares = usual_shares(num_bytes, memory, [None] * len(memory))
    split = LayerSplit(shares, behind_first, overrides, expert_slots)
    split.place([(Weight(info.shape, name=name), info) for name, info in tensors.items()])
    return split


def _module(name: str) -> Any:
    if name not in BACKENDS:
        raise OptionError(f"backend {name!r} is unknown; known: {', '.join([AUTO, *BACKENDS])}")
    return import_module(BACKENDS[name])


def usual_backend() -> tuple[str, Sequence[Device]]:
    """Return the backend of this machine, `cuda` if a GPU can compute and otherwise `cpu`, and the GPUs."""
    cuda = _module("cuda")
    try:
        if cuda.is_there():
            return "cuda", cuda.gpus()
    except ChaskiError as error:
        _log.warning("the processor computes, not a GPU: %s", error)
    return "cpu", ()


def usual_gpus() -> Sequence[Device]:
    """Return the GPUs that models are computed on unless the user chooses another backend."""
    name = Environment.read().backend
    return usual_backend()[1] if name == AUTO else gpus_of(name)


def has_gpu_driver() -> bool:
    """Return whether a GPU may compute, without loading its packages."""
    found: bool = _module("cuda").is_there()
    return found


def gpus_of(name: str) -> Sequence[Device]:
    """Return the GPUs that a backend may compute with, with their free memory; empty if it uses none.

    Raises what opening the backend raises.
    """
    module = _module(name)
    found: Sequence[Device] = module.gpus() if GPUOptions in module.OPTIONS else ()
    return found


def serve_member(
    address: str, key: bytes, backend: str, folders: Sequence[Path], cpu: CPUOptions
) -> MemberServer:
    """Listen at an address (host:port) and compute parts of models with a backend of this machine.

    key      the key that all nodes share, see `cluster_key.read_key`
    folders  folders that are searched for model files by name

    Raises OptionError for a bad address, UnsupportedError for a backend that cannot compute parts of a model,
    and ClusterError if the node cannot listen at the address.
    """
    from chaski.ml.sharded.serving import MemberServer, listening_address

    if backend == AUTO:
        backend, _ = usual_backend()
    if backend == "sharded":
        raise UnsupportedError("a node computes by itself: use the backend cpu or cuda")
    host, port = listening_address(address)
    speed = None
    if backend == "cpu":
        from chaski.ml.cpu.thread_rates import measure_reading
        from chaski.ml.machine import physical_cores
        from chaski.ml.sharded.speed import BestSpeed

        speed = BestSpeed(partial(measure_reading, cpu.threads or physical_cores(), cpu.isa))
    return MemberServer(host, port, key, lambda options: open_backend(backend, options, cpu), folders, speed)


def check_member(host: str, port: int, key: bytes) -> None:
    """Raise ClusterError unless a member of `serve_member` listens at an address and knows the key."""
    from chaski.ml.sharded.links import connect

    connect(host, port, key).close()


def memory_bandwidth(threads: int, isa: str = "auto") -> float:
    """Return the bytes per second that threads of the processor read from memory together.

    The first call measures it, which takes some tenths of a second. Raises ValueError if this build or this
    machine lacks the instruction set.
    """
    from chaski.ml.cpu.thread_rates import reading_rate

    return reading_rate(threads, isa)


def processor_rates(weight_bytes: Mapping[QuantType, int], threads: int, isa: str = "auto") -> DeviceRates:
    """Return the rates of threads of the processor for a model with these bytes of weights of each type.

    What no process has measured before is measured, which takes a second for each type.

    Raises ValueError if this build or this machine lacks the instruction set.
    """
    from chaski.ml.cpu.product_rates import processor_rates

    return processor_rates(weight_bytes, threads, isa)


def measure_machine(
    processors: int, weight_bytes: int, isa: str = "auto", crowds: Sequence[int] = ()
) -> Machine:
    """Measure this machine for the scaling model, which takes some tenths of a second.

    `weight_bytes`: the size of a model, which may fit in a cache. `crowds`: thread counts to measure that are
    larger than the number of processors. Other running programs affect the result.
    Raises ValueError if this build or this machine lacks the instruction set.
    """
    from chaski.ml.cpu.thread_rates import measure_machine

    return measure_machine(processors, weight_bytes, isa, crowds)
