"""The seam between models and machines: what a backend must offer.

A backend binds the weights of a file, creates key/value storage, and compiles a recorded graph into a plan.
Compiling places every buffer for the largest batch, so it is the memory reservation: after it nothing grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import TensorInfo
from chaski.ml.graph import DType, Graph, KVBuffer, Weight

__all__ = ["Backend", "BackendOptions", "Device", "Memory", "Plan", "Progress"]

Progress = Callable[[float], None]
"""Called with the done share of the work, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """`threads`: how many cores a plan may use; None is every physical core that this process may use.

    `isa`: the instruction set of the kernels, for tests and comparisons; `auto` is the fastest here.
    """

    threads: int | None = None
    isa: str = "auto"


@dataclass(frozen=True, slots=True)
class Device:
    """A processor that a backend can compute on; `features` names its instruction sets."""

    name: str
    kind: str
    cores: int
    features: tuple[str, ...]
    memory_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a backend holds: weights, key/value storage, and the buffers of its plans."""

    weights: int
    cache: int
    plans: int


class Plan(Protocol):
    """A compiled graph. Not thread-safe: one run at a time, of all the plans of a backend."""

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[np.int32]]:
        """Writable views of the input buffers, at their maximum size. Write before `launch`."""

    def launch(self, sizes: Mapping[str, int]) -> None:
        """Begin to compute; `sizes` gives every `Dim` of the graph by name.

        What the backend was computing before is finished first.
        """

    def wait(self) -> None:
        """Compute to the end of what `launch` began; without that, nothing."""

    def run(self, sizes: Mapping[str, int]) -> None:
        """`launch` and `wait`."""

    def output(self, name: str) -> npt.NDArray[np.float32]:
        """A view of a result of the last run, trimmed to its sizes; valid until the next run."""


class Backend(Protocol):
    """A place to compute. Opened by `chaski.ml.open_backend`."""

    @property
    def name(self) -> str:
        """The name that `open_backend` knows it by."""

    @property
    def default_kv_dtype(self) -> DType:
        """The element type of key/value storage when the user names none."""

    def devices(self) -> Sequence[Device]:
        """The processors that this backend computes on."""

    def bind(self, weights: Sequence[tuple[Weight, TensorInfo]], progress: Progress) -> None:
        """Read the tensors and set every weight's `handle`."""

    def kv_buffer(self, cells: int, heads: int, size: int, dtype: DType) -> KVBuffer:
        """Zeroed key or value storage. Raises OutOfMemoryError, or UnsupportedError for a dtype it lacks."""

    def compile(self, graph: Graph) -> Plan:
        """Turn a graph into a plan with all its memory. Raises OutOfMemoryError."""

    def memory(self) -> Memory:
        """What this backend holds now."""

    def close(self) -> None:
        """Release threads and memory. Plans and buffers must not be used any more."""
