"""The interface of a GPU that plans need: memory, kernels, and one queue that executes work in order.

`driver.py` implements it for the GPUs of this machine. Tests have a GPU that computes on the host.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import DeviceError, OutOfMemoryError
from chaski.ml.backend import Device

__all__ = ["GPU", "Grid", "Kernel", "KernelLaunch", "Program", "pack", "ran_out"]

U8 = npt.NDArray[np.uint8]
Grid = tuple[int, int, int]
"""The number of thread blocks along x, y and z."""


class Program(Struct, frozen=True):
    """A file of kernels, and the macros that it is compiled with.

    `file` is a name in the folder `kernels`, or a path elsewhere, both without `.cu`.
    """

    file: str
    defines: tuple[tuple[str, str | int], ...] = ()


Kernel = Any
"""A kernel of a compiled program, in a form that only its GPU knows."""


class KernelLaunch(Struct, frozen=True):
    """A kernel with its argument, the bytes of a C struct.

    `is_early`: the kernel may begin before earlier launches have ended, and waits for them itself.
    """

    kernel: Kernel
    grid: Grid
    threads: int
    shared: int
    argument: bytes
    is_early: bool = False


class GPU(Protocol):
    """A device with one queue. All requests are executed in order.

    Its methods raise DeviceError if the device fails, and OutOfMemoryError if its memory runs out.
    """

    @property
    def device(self) -> Device:
        """The description of the device, with the memory that is available now."""

    @property
    def rule(self) -> str:
        """The name of the device's architecture, for which programs are compiled."""

    @property
    def shared_memory(self) -> int:
        """The bytes of shared memory that a thread block may use."""

    def allocate(self, size: int) -> int:
        """Allocate memory -> its address, a multiple of 256. The content is undefined."""

    def free(self, address: int) -> None:
        """Free memory that `allocate` returned."""

    def zero(self, address: int, size: int) -> None:
        """Fill memory with zeros."""

    def staging(self, size: int) -> U8:
        """Allocate host memory that `upload` copies from, and `fetch` copies to, at full speed.

        The memory is freed with the array, which must live until the copy is done.
        """

    def upload(self, address: int, staged: npt.NDArray[Any]) -> None:
        """Copy a part of `staging` memory to the device. It must not change until `wait_uploads` returns."""

    def wait_uploads(self) -> None:
        """Wait until all uploads so far are complete."""

    def replace(self, address: int, content: npt.NDArray[Any]) -> None:
        """Change memory that launches only read, such as weights: wait for all work, and for the copy."""

    def fetch(self, address: int, staged: npt.NDArray[Any]) -> None:
        """Begin to copy device memory to a part of `staging` memory, after all earlier work.

        The copy is complete when `wait`, or a function that `mark` returned afterwards, returns.
        """

    def mark(self) -> Callable[[], None]:
        """Return a function that waits until all requests so far are done. Any thread may call it once."""

    def expect(self, programs: Iterable[Program]) -> None:
        """Begin to compile programs that may be needed later, without making anybody wait."""

    def is_ready(self, programs: Iterable[Program]) -> bool:
        """Return whether `prepare` has nothing to compile."""

    def prepare(self, programs: Iterable[Program]) -> None:
        """Compile programs, several at a time."""

    def kernel(self, program: Program, name: str) -> Kernel:
        """Compile a program unless it is compiled -> one of its kernels."""

    def record(self, launches: Sequence[KernelLaunch]) -> object:
        """Record consecutive launches as one unit of work that can be run many times.

        It does not wait for work that was launched before.
        """

    def run(self, recorded: object) -> None:
        """Begin to compute recorded work."""

    def forget(self, recorded: object) -> None:
        """Release recorded work. If it is being computed, it is finished first."""

    def launch(self, launches: Sequence[KernelLaunch]) -> None:
        """Begin to compute launches that are not recorded, because they may not repeat."""

    def wait(self) -> None:
        """Wait until everything is computed."""

    def close(self) -> None:
        """Release everything that the GPU holds, except staging memory that arrays still point to.

        No method may be called afterwards.
        """


def ran_out(error: OutOfMemoryError) -> DeviceError:
    """Return the error for running out of memory after loading, when all needed memory was reserved."""
    return DeviceError(
        f"the GPU ran out of memory while it computed, because other processes took the free memory: {error}"
    )


def pack(format: str, values: Sequence[Any]) -> bytes:
    """Return the bytes of a C struct: `P` for addresses, `q` int64, `f` and `d` floats."""
    return struct.pack(f"@{format}", *values)
