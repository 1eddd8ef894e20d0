"""GPUs on paper: their figures, and a static model of the time of a kernel.

A kernel takes the longest of four times, and a start:

- its bytes, at 0.85 of the rate of a copy
- its warps' instructions, at 0.62 of the rate at which they can be issued
- its multiply-adds, at the rate of the tensor instructions
- one warp's instructions, each once, 2.5 cycles apart: no kernel ends sooner

If the last of several thread blocks or warps continues with another step, its arrival and this step are
added. They are not measured: a fence and an atomic operation take 600 ns, and a multiprocessor reads 64 bytes
in a cycle from the second-level cache.

The first three grow where the last wave of thread blocks leaves multiprocessors idle. The shares, the cycles
and the start were fitted to kernels that one H200 ran (docs/gpu.md has both). Products are counted by the
loops of their machine code. All else is an assumption, above all that other GPUs have the same shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu_compiled import KernelCode
from chaski.ml.backend import Device
from chaski.ml.cuda.device import KernelLaunch
from chaski.ml.cuda.device import Program as Source
from chaski.ml.cuda.lowering import Kernel

__all__ = [
    *(
        "CYCLES",
        "GPUS",
        "PRODUCTS",
        "Figures",
        "PaperGPU",
        "product_instructions",
        "seconds",
        "seconds_of_tail",
        "waves_of",
    ),
    "without",
]

PRODUCTS = ("matmul", "matmul_super", "matmul_many", "matmul_super_many")
"""The kernels for products with quantized matrices."""
_BYTES, _ISSUED = 0.85, 0.62
"""The shares of a copy's rate, and of the rate of instructions, that kernels reach."""
_START = 1.8e-6
CYCLES = 2.5
_ARRIVAL = 600e-9
_CACHE_BYTES = 64

_LANES = 16
"""Rows of a panel of weights; a warp has two groups of so many threads."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a kind of GPU has. Multiprocessors issue four instructions of warps in a cycle."""

    name: str
    architecture: str
    cores: int
    """Multiprocessors."""
    clock: float
    """Cycles a second."""
    copy: float
    """Bytes a second of a copy: reads and writes."""
    shared: int
    """Bytes of shared memory that a thread block can have; a multiprocessor has 1 KiB more."""
    threads: int
    """The most threads of a multiprocessor."""
    blocks: int
    """The most thread blocks of a multiprocessor."""
    tensor: float
    """Multiply-adds of 8-bit integers in a cycle of a multiprocessor, by mma.sync."""

    @property
    def issued(self) -> float:
        """Instructions of warps a second, of all multiprocessors."""
        return 4 * self.cores * self.clock

    def resident(self, kernel: Kernel, code: KernelCode) -> int:
        """Return the number of a kernel's thread blocks that fit a multiprocessor."""
        warps = -(-kernel.threads // 32)
        by_registers = 65536 // (-(-code.registers // 8) * 8 * 32 * warps)
        by_shared = (self.shared + 1024) // max(1024, code.shared + kernel.shared + 1024)
        return min(by_registers, by_shared, self.threads // kernel.threads, self.blocks)


GPUS = {
    # The copy of the H200 was measured. Those of the others are 0.88 of the nominal rate, as on the H200.
    "h200": Figures("H200", "sm_90", 132, 1.74e9, 4.21e12, 227 << 10, 2048, 32, 2540),
    "a100": Figures("A100 80 GB", "sm_80", 108, 1.41e9, 1.79e12, 163 << 10, 2048, 32, 2048),
    "rtx-4090": Figures("RTX 4090", "sm_89", 128, 2.52e9, 0.887e12, 99 << 10, 1536, 24, 1024),
    "t4": Figures("T4", "sm_75", 40, 1.59e9, 0.282e12, 64 << 10, 1024, 16, 1024),
}


def seconds(
    gpu: Figures, num_bytes: int, instructions: float, products: int, waves: float, once: int
) -> float:
    """Return the time of a kernel.

    instructions   of all its warps
    products       its multiply-adds by tensor instructions
    waves          the work of the busiest multiprocessor, divided by the mean
    once           instructions of the program
    """
    return _START + max(
        waves * num_bytes / (_BYTES * gpu.copy),
        waves * instructions / (_ISSUED * gpu.issued),
        waves * products / (gpu.tensor * gpu.cores * gpu.clock),
        once * CYCLES / gpu.clock,
    )


def seconds_of_tail(gpu: Figures, num_bytes: int, instructions: int) -> float:
    """Return the time of the last thread block after the others, with its instructions one by one."""
    return _ARRIVAL + num_bytes / (_CACHE_BYTES * gpu.clock) + instructions * CYCLES / gpu.clock


def without(program: Source, *macros: str) -> Source:
    """Return the program that is compiled without some macros."""
    return Source(program.file, tuple(each for each in program.defines if each[0] not in macros))


def waves_of(gpu: Figures, kernel: Kernel, panels: int) -> float:
    """Return the work of the busiest multiprocessor, divided by the mean. `panels`: of a product, else 0."""
    blocks = math.prod(kernel.grid)
    panels //= int(
        dict(kernel.program.defines).get("CHASKI_OPERANDS", 1)
    )  # a thread block takes these together
    each = panels / kernel.grid[0] if kernel.name in ("matmul", "matmul_super") else 1.0
    return math.ceil(each) * -(-blocks // gpu.cores) * gpu.cores / (each * blocks)


def product_instructions(kernel: Kernel, code: KernelCode, block: int, columns: int, panels: int) -> float:
    """Return the instructions of all warps of a product.

    block     the elements of a block of weights
    columns   the elements of a row
    """
    defines = dict(kernel.program.defines)
    work: float
    loop = code.largest_loop()
    inner = code.largest_loop(loop)
    warps = kernel.threads // 32
    if kernel.name == "matmul":
        unit, groups = int(defines["CHASKI_UNIT"]), int(defines["CHASKI_GROUPS"])
        # A warp goes through the loop once for `unit` blocks of each of its two panels' groups. The inner
        # loop is that over the unit; if there is one block only, it is that of the chain of floats.
        work = len(loop) - len(inner) + (unit * len(inner) if unit > 1 else 0)
        stages = panels * -(-columns // (block * unit * groups)) * kernel.grid[1]
        return stages * warps * work
    if kernel.name == "matmul_super":
        # Warps that multiply and warps that add up floats have separate loops, for each stage of a panel.
        multiplying = int(defines["CHASKI_WARPS"])
        apart = (each for each in code.loops if each.start >= loop.stop or each.stop <= loop.start)
        adding = max(apart, key=len, default=range(0))
        stages = panels * -(-columns // (block * multiplying)) * kernel.grid[1]
        return stages * (multiplying * len(loop) + (warps - multiplying) * len(adding))
    if kernel.name == "matmul_super_many":
        stages = -(-columns // (block * int(defines["CHASKI_SPLITS"])))
        return math.prod(kernel.grid) * warps * stages * len(loop)
    if kernel.name == "matmul_many":
        # Each stretch of 256 elements has its loop of multiplying, and in it that of unpacking the next one.
        # One of eight groups of threads unpacks a block of 256.
        tasks = -(-8 * int(defines["CHASKI_PANELS"]) * _LANES // kernel.threads)
        work = len(loop) - len(inner) + tasks * len(inner) / (8 if block == 256 else 1)
        return math.prod(kernel.grid) * warps * -(-columns // 256) * work
    return 0.0


class PaperGPU:
    """A GPU whose memory has addresses but no content."""

    def __init__(self, cores: int = 132, shared_memory: int = 227 << 10, architecture: str = "sm_90") -> None:
        self.device = Device("cuda:0", "a GPU on paper", cores, (architecture,), 1 << 40, 1 << 40)
        self.shared_memory = shared_memory
        self.rule = architecture
        self._next = 256

    def allocate(self, size: int) -> int:
        address, self._next = self._next, self._next + -(-size // 256) * 256
        return address

    def staging(self, size: int) -> npt.NDArray[np.uint8]:
        return np.zeros(size, np.uint8)

    def kernel(self, program: Source, name: str) -> Any:
        return program, name

    def record(self, launches: Sequence[KernelLaunch]) -> object:
        return launches

    def is_ready(self, programs: Iterable[Source]) -> bool:
        return True

    def mark(self) -> Callable[[], None]:
        return self.wait

    def _nothing(self, *_: Any) -> None:
        """Do nothing."""

    free = zero = upload = wait_uploads = replace = fetch = run = forget = launch = wait = close = _nothing

    def prepare(self, programs: Iterable[Source]) -> None:
        """Compile nothing; the table compiles on demand."""

    expect = prepare
