"""The parts of a GPU that a plan needs: memory, kernels, and one queue in which all happens in order.

`driver.py` has the GPU of this machine. Tests have one that computes on the host.
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
"""Blocks of threads along x, y and z."""


class Program(Struct, frozen=True):
    """A file of kernels and the macros that it is compiled with."""

    file: str
    defines: tuple[tuple[str, str | int], ...] = ()


Kernel = Any
"""A kernel of a compiled program, of which only its GPU knows the form."""


class KernelLaunch(Struct, frozen=True):
    """A kernel with its argument, the bytes of a C struct.

    `is_early`: it may begin before what was launched before it has ended, and waits for that itself.
    """

    kernel: Kernel
    grid: Grid
    threads: int
    shared: int
    argument: bytes
    is_early: bool = False


class GPU(Protocol):
    """A device with one queue. All requests are executed in order.

    Its methods raise DeviceError where the device fails, and OutOfMemoryError where memory ends.
    """

    @property
    def device(self) -> Device:
        """Its description, and the memory that is available now."""

    @property
    def rule(self) -> str:
        """A name for the kind of device, for which programs are compiled."""

    @property
    def shared_memory(self) -> int:
        """How many bytes of shared memory a block of threads may have."""

    def allocate(self, size: int) -> int:
        """Take memory -> its address, a multiple of 256. Its content is undefined."""

    def free(self, address: int) -> None:
        """Give memory back that `allocate` took."""

    def zero(self, address: int, size: int) -> None:
        """Fill memory with zeros."""

    def staging(self, size: int) -> U8:
        """Take memory of the host that `upload` copies from at full speed, and `fetch` to.

        It is given back with the array, which must live until the copy is done.
        """

    def upload(self, address: int, staged: npt.NDArray[Any]) -> None:
        """Copy a part of such memory to the device. It must stay as it is until `wait_uploads` returns."""

    def wait_uploads(self) -> None:
        """Wait until all uploads so far are copied."""

    def fetch(self, address: int, staged: npt.NDArray[Any]) -> None:
        """Begin to copy memory to a part of what `staging` gave, after all earlier work.

        It has arrived when `wait`, or the function that `mark` returned, returns.
        """

    def mark(self) -> Callable[[], None]:
        """Return what waits until all that was asked for so far is done, which any thread may call once."""

    def prepare(self, programs: Iterable[Program]) -> None:
        """Compile programs, several at a time."""

    def kernel(self, program: Program, name: str) -> Kernel:
        """Compile a program, if that was not done yet -> one of its kernels."""

    def record(self, launches: Sequence[KernelLaunch]) -> object:
        """Make one thing of launches that follow each other, to be run many times."""

    def run(self, recorded: object) -> None:
        """Begin to compute recorded work."""

    def launch(self, launches: Sequence[KernelLaunch]) -> None:
        """Begin to compute work that is not worth recording: it may not come again."""

    def wait(self) -> None:
        """Wait until everything is computed."""

    def close(self) -> None:
        """Give back all that it holds. Nothing may be asked for after that."""


def ran_out(error: OutOfMemoryError) -> DeviceError:
    """The error for memory that ended after loading, where all that is needed was counted."""
    return DeviceError(
        f"the GPU ran out of memory while it computed, as others have taken what was free: {error}"
    )


def pack(format: str, values: Sequence[Any]) -> bytes:
    """Return the bytes of a C struct: `P` for addresses, `q` int64, `f` and `d` floats."""
    return struct.pack(f"@{format}", *values)
