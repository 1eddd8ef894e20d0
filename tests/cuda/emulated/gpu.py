"""The emulated device: host memory, and kernels built by a C++ compiler."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import ComputationError, DeviceError, OutOfMemoryError
from chaski.ml.backend import Device
from chaski.ml.cuda.device import KernelLaunch, Program
from chaski.ml.cuda.sources import KERNELS, digest_of, native_headers

__all__ = ["SIZES", "EmulatedGPU", "found_gpus"]

U8 = npt.NDArray[np.uint8]
HERE = Path(__file__).parent
BUILT = HERE.parents[2] / "build" / "cuda-emulated"

SIZES = [8 << 30]
"""The memory of each emulated GPU in bytes; tests change the list."""

# The fibers of a program belong to one block at a time.
_COMPUTING = threading.Lock()

_FLAGS = (
    *("-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w"),
    *("-DCHASKI_CUDA", "-DCHASKI_ISA=cuda", f"-I{HERE}", f"-I{KERNELS}", f"-I{native_headers()}"),
)
_LAST_FAILURES = {
    "device lost": "all CUDA-capable devices are busy or unavailable (CUDA_ERROR_DEVICE_UNAVAILABLE)",
    "illegal address": "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)",
}
_FAILURES = {
    1: "its threads wait for each other for ever",
    2: "a grid or a block of threads that no GPU takes",
    3: "it wrote behind its shared memory",
    4: "it touched memory of earlier kernels before device::begin, or memory that nobody has",
}


class EmulatedGPU:
    """A GPU that tests can inspect. `launched` contains the names of kernels that ran, and
    `num_recorded` is the number of recordings that it keeps.

    Work is only done when a caller waits for it or for later work. So data that are copied or changed too
    early are wrong, which tests notice.

    CHASKI_EMULATED_FAILS sets the number of runs before a failure, and its kind: `12:device lost`,
    `12:illegal address`, or `12:out of memory`. Like a real GPU, it computes no more for its process after
    the first two kinds.

    Memory that is uploaded to, zeroed or fetched from after the first launch is protected while threads have
    not called `device::begin`, since an earlier kernel may still be writing it.

    CHASKI_EMULATED_SHARED sets the KiB of shared memory of a thread block, as 99 for most GPUs of this size,
    and CHASKI_EMULATED_ORDER the order of threads and blocks: see fibers.h.
    """

    rule = "emulated"

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.shared_memory = int(os.environ.get("CHASKI_EMULATED_SHARED", "227")) << 10
        self.launched: list[str] = []
        self.num_recorded = 0
        self.held: dict[int, U8] = {}
        self._changing: set[int] = set()  # the addresses of memory that changes between launches
        self._queue: deque[Callable[[], None]] = deque()
        self._asked = self._done = self._uploaded = 0
        self._doing = threading.RLock()  # threads may wait at the same time
        runs, _, self._failure = os.environ.get("CHASKI_EMULATED_FAILS", f"{1 << 60}").partition(":")
        self._runs_left = int(runs)

    @property
    def device(self) -> Device:
        return _device(self.number, sum(memory.size for memory in self.held.values()))

    def allocate(self, size: int) -> int:
        self._check_works()
        memory = np.frombuffer(mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
        memory[:] = 0xFF
        self.held[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free(self, address: int) -> None:
        self.wait()
        self.held.pop(address)
        self._changing.discard(address)

    def zero(self, address: int, size: int) -> None:
        self._check(address, size)
        self._ask(lambda: ctypes.memset(address, 0, size))

    def staging(self, size: int) -> U8:
        return np.zeros(size, np.uint8)

    def upload(self, address: int, staged: npt.NDArray[Any]) -> None:
        self._check_works()
        self._check(address, staged.nbytes)
        self._ask(lambda: ctypes.memmove(address, staged.ctypes.data, staged.nbytes))
        self._uploaded = self._asked

    def wait_uploads(self) -> None:
        self._do(self._uploaded)

    def replace(self, address: int, content: npt.NDArray[Any]) -> None:
        self.wait()
        ctypes.memmove(address, content.ctypes.data, content.nbytes)

    def fetch(self, address: int, staged: npt.NDArray[Any]) -> None:
        self._check_works()
        self._check(address, staged.nbytes)
        staged.view(np.uint8)[:] = 0xFF
        self._ask(lambda: ctypes.memmove(staged.ctypes.data, address, staged.nbytes))

    def mark(self) -> Callable[[], None]:
        return partial(self._do, self._asked)

    def expect(self, programs: Iterable[Program]) -> None:
        """Do nothing: tests need few of the programs."""

    def is_ready(self, programs: Iterable[Program]) -> bool:
        return True

    def prepare(self, programs: Iterable[Program]) -> None:
        for program in programs:
            _library(program)

    def kernel(self, program: Program, name: str) -> Any:
        return name, getattr(_library(program), name)

    def record(self, launches: Sequence[KernelLaunch]) -> object:
        self.num_recorded += 1
        return list(launches)

    def forget(self, recorded: object) -> None:
        self.num_recorded -= 1

    def run(self, recorded: object) -> None:
        assert isinstance(recorded, list)
        self.launch(recorded)

    def launch(self, launches: Sequence[KernelLaunch]) -> None:
        self._runs_left -= 1
        self._check_works()
        if self._runs_left < 0:
            raise OutOfMemoryError("the GPU has no room for a call of the driver")
        self._ask(partial(self._compute, launches))

    def wait(self) -> None:
        self._do(self._asked)

    def close(self) -> None:
        self.held.clear()

    def _ask(self, work: Callable[[], Any]) -> None:
        """Queue an operation."""
        with self._doing:
            self._queue.append(work)
            self._asked += 1

    def _do(self, until: int) -> None:
        """Execute queued operations in order until this many are done. Raises the errors of the device."""
        with self._doing:
            self._check_works()
            while self._done < until:
                self._done += 1
                self._queue.popleft()()

    def _compute(self, launches: Sequence[KernelLaunch]) -> None:
        for launch in launches:
            name, function = launch.kernel
            if launch.shared > self.shared_memory:
                raise ComputationError(f"kernel {name}: {launch.shared} of {self.shared_memory} shared bytes")
            grid = (ctypes.c_uint * 3)(*launch.grid)
            with _COMPUTING:
                outcome = function(
                    launch.argument,
                    grid,
                    ctypes.c_uint(launch.threads),
                    ctypes.c_size_t(launch.shared),
                    self._protected(),
                )
            if outcome:
                raise ComputationError(f"kernel {name}: {_FAILURES[outcome]}")
            self.launched.append(name)

    def _protected(self) -> Any:
        """Return the memory that must not be touched before `begin`: begins and sizes, and then a 0."""
        parts = [part for address in self._changing for part in (address, self.held[address].size)]
        return (ctypes.c_size_t * (len(parts) + 1))(*parts, 0)

    def _check_works(self) -> None:
        if self._runs_left < 0 and self._failure in _LAST_FAILURES:
            raise DeviceError(f"the GPU failed: {_LAST_FAILURES[self._failure]}")

    def _check(self, address: int, size: int) -> None:
        for first, memory in self.held.items():
            if first <= address and address + size <= first + memory.size:
                if self.launched:
                    self._changing.add(first)
                return
        raise ComputationError(f"{size} bytes at {address:#x} are nobody's")


def found_gpus() -> Sequence[Device]:
    """Describe all emulated GPUs, with all memory free."""
    return [_device(number, 0) for number in range(len(SIZES))]


def _device(number: int, taken: int) -> Device:
    size = SIZES[number]
    return Device(f"cuda:{number}", "an emulated GPU", 4, ("emulated",), size, size - taken)


@cache
def _library(program: Program) -> ctypes.CDLL:
    """Build a program, unless a process has already built it."""
    host = "".join(path.read_text() for path in sorted(HERE.glob("*.h")))
    path = BUILT / f"{Path(program.file).name}-{digest_of(program, host, *_FLAGS)}.so"
    if not path.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                defines = [f"-D{name}={value}" for name, value in program.defines]
                source = KERNELS / f"{program.file}.cu"
                partial = path.with_suffix(f".{os.getpid()}")
                command = [
                    os.environ.get("CXX", "g++"),
                    *_FLAGS,
                    *defines,
                    "-x",
                    "c++",
                    source,
                    "-o",
                    partial,
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(f"{source} cannot be compiled for the host:\n{done.stderr}")
                partial.rename(path)
    return ctypes.CDLL(str(path))
