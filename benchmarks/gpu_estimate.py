"""Estimate the time of a model's step on a GPU, kernel by kernel. It needs no GPU.

    python -m benchmarks.gpu_estimate                    Llama 3.1 8B in Q4_K_M on an H200
    python -m benchmarks.gpu_estimate --work decode      one of the steps, with every kind of kernel
    python -m benchmarks.gpu_estimate --host 1           measure the host time to launch a step

The plans are the backend's own, for a GPU that computes nothing. Compiling each kernel shows its registers,
the number of warps that fit a multiprocessor, and with nvdisasm its instructions, both in the normal build
and in a build with free rounding (gpu_compiled.py). A kernel reads matrices, keys and values once. The
estimate is the longer of two times: reading at the rate of a copy, and multiplying at the rate measured in
prompts. Each kernel adds a measured constant: see docs/gpu.md. The bound uses the rate of a copy and the
nominal rate of the tensor cores, without a time per kernel. Estimates are not measurements.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu_compiled import FREE, Compiled
from benchmarks.make_models import SHAPES, write_hollow
from chaski import _native
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import open_backend
from chaski.ml.backend import BackendOptions, Device
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.cuda.device import KernelLaunch
from chaski.ml.cuda.device import Program as Source
from chaski.ml.cuda.lowering import Kernel, Matrix, Step
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.graph import DType
from chaski.ml.plan import Input
from chaski.model.file_dialects import open_model
from chaski.model.program import Program, Run
from chaski.model.registry import build_model
from chaski.model.weights import place_weights

# An H200. docs/gpu.md contains the measurements: the rate of a copy, and from it the constant of a kernel in
# a decode step and the multiply-adds of a prompt of 512 tokens.
_CORES, _ARCHITECTURE = 132, "sm_90"
_COPY = 4.21e12
_KERNEL = 8e-6
_PRODUCTS = 3.3e13
_PAPER_PRODUCTS = 9.9e14
# Limits of a multiprocessor: registers, bytes of shared memory, threads, and blocks of threads.
_REGISTERS, _SHARED, _THREADS, _BLOCKS = 65536, 228 << 10, 2048, 32

# The kernels that read keys and values, from all cells of a sequence.
_ATTENTION = ("attention", "attention_chunk")

_WORK = {
    "decode": (1, 1, 16),
    "decode behind 32,768": (1, 1, 32768),
    "decode of 64": (64, 1, 16),
    "decode of 256": (256, 1, 16),
    "prefill of 2,048": (1, 512, 1536),
}
"""The numbers of sequences, of tokens of each in a batch, and of tokens before these."""


class PaperGPU:
    """A GPU whose memory has addresses but no content."""

    rule = _ARCHITECTURE

    def __init__(self, cores: int = _CORES, shared_memory: int = 227 << 10) -> None:
        self.device = Device("cuda:0", "a GPU on paper", cores, (_ARCHITECTURE,), 1 << 40, 1 << 40)
        self.shared_memory = shared_memory
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

    def mark(self) -> Callable[[], None]:
        return self.wait

    def _nothing(self, *_: Any) -> None:
        """Do nothing."""

    free = zero = upload = wait_uploads = fetch = run = forget = launch = wait = close = _nothing

    def prepare(self, programs: Iterable[Source]) -> None:
        """Compile nothing; the table compiles on demand."""

    expect = prepare


@dataclass(slots=True)
class Kind:
    """Kernels with the same name and grid: their number, and the bytes and multiply-adds of all."""

    kernel: Kernel
    count: int = 0
    num_bytes: int = 0
    products: int = 0

    @property
    def bound(self) -> float:
        """Return the least possible seconds."""
        return max(self.num_bytes / _COPY, self.products / _PAPER_PRODUCTS)

    @property
    def estimate(self) -> float:
        """Return the estimated seconds, from measurements of such kernels."""
        return self.count * _KERNEL + max(self.num_bytes / _COPY, self.products / _PRODUCTS)


def warps_of(kernel: Kernel, compiled: Compiled) -> int:
    """Return the number of warps of a kernel that fit a multiprocessor."""
    code = compiled.of(kernel.program)[kernel.name]
    warps = -(-kernel.threads // 32)
    by_registers = _REGISTERS // (-(-code.registers // 8) * 8 * 32 * warps)
    by_shared = _SHARED // max(1024, code.shared + kernel.shared + 1024)
    blocks = min(by_registers, by_shared, _THREADS // kernel.threads, _BLOCKS)
    return min(blocks, -(-math.prod(kernel.grid) // _CORES)) * warps


def kinds_of(steps: Sequence[Step], sizes: Mapping[str, int], tokens: int, history: int) -> Sequence[Kind]:
    """Group the kernels of a run by kind. `history`: cells that attention reads in each layer."""
    found: dict[tuple[Any, ...], Kind] = {}
    for step in steps:
        kernel = step.choose(sizes)
        if kernel is None:
            continue
        kind = found.setdefault((kernel.name, kernel.program, kernel.grid), Kind(kernel))
        kind.count += 1
        for argument in step.arguments:
            if isinstance(argument, Matrix) and not kernel.name.startswith("embed"):
                kind.num_bytes += _native.matrix_bytes(argument.type, argument.rows, argument.columns)
                kind.products += tokens * argument.rows * argument.columns
            elif isinstance(argument, KVStorage) and kernel.name in _ATTENTION:
                kind.num_bytes += history * argument.cell_bytes
    return list(found.values())


@contextmanager
def compiled_model(path: Path, sequences: int, context: int) -> Iterator[Program]:
    """Return a model as the backend compiles it."""
    # The angles of a file without content are not numbers.
    with closing(open_backend("cpu")) as host, np.errstate(divide="ignore"):
        backend = CUDABackend(BackendOptions(), PaperGPU(), host)
        file = open_model(path)
        network = build_model(file)
        network.context = context
        place_weights(network, file, backend)
        size = CacheSize(sequences, context, max(512, sequences))
        cache = build_cache(backend, network.layer_kinds(), size, KVTypes(DType.I16, DType.I16))
        yield Program(network, cache, backend, max(512, sequences), sequences, max_top_logits=128)


def batch_of(sequences: int, begin: int, end: int) -> Batch:
    """Return the tokens of all sequences at some positions, with an output for each sequence."""
    positions = np.arange(begin, end, dtype=np.int32)
    return Batch(
        np.zeros(sequences * len(positions), np.int32),
        np.tile(positions, sequences),
        np.repeat(np.arange(sequences, dtype=np.int32), len(positions)),
        np.arange(1, sequences + 1, dtype=np.int32) * len(positions) - 1,
    )


def compute(program: Program, sequences: int, before: int) -> None:
    """Launch batches of all tokens at the positions up to `before`."""
    at_once = program.max_tokens // sequences
    for begin in range(0, before, at_once):
        batch = batch_of(sequences, begin, min(begin + at_once, before))
        program.launch(program.prepare(batch), [40] * sequences)


def kernels_of(path: Path, sequences: int, tokens: int, before: int) -> Sequence[Kind]:
    """Return the kernels of a batch after earlier batches."""
    with compiled_model(path, sequences, before + tokens + 256) as program:
        compute(program, sequences, before)
        batch = batch_of(sequences, before, before + tokens)
        program.launch(program.prepare(batch), [40] * sequences)
        plan = program._plan
        assert isinstance(plan, CUDAPlan)
        return kinds_of(plan.steps, plan.newest_sizes, sequences * tokens, sequences * (before + tokens))


def host_seconds(path: Path, sequences: int, before: int, steps: int = 1500) -> Sequence[float]:
    """Return the host's seconds to launch each of several steps without the driver, sorted.

    Each step gets the tokens that the previous step chose.
    """
    found = []
    with compiled_model(path, sequences, before + steps + 256) as program:
        compute(program, sequences, before)
        run: Run | None = None
        for position in range(before, before + steps):
            batch = batch_of(sequences, position, position + 1)
            inputs: dict[str, Input] = {**program.prepare(batch)}
            inputs["num_top_logits"] = np.ones(sequences, np.int32)
            if run is not None:
                run.drop_outputs()
                inputs["tokens"] = run.largest(batch.tokens, range(sequences), range(sequences))
            began = perf_counter()
            launch = program._plan.launch(inputs)
            found.append(perf_counter() - began)
            run = Run(launch, sequences, 0, program.max_top_logits)
    return sorted(found)


def main() -> None:
    """Print a table of steps, or of one step's kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--work", choices=_WORK, help="the kernels of this one")
    parser.add_argument("--host", type=int, metavar="SEQUENCES", help="measure the host time of a step")
    arguments = parser.parse_args()
    compiled = Compiled(_ARCHITECTURE)
    with TemporaryDirectory() as name:
        path = Path(name) / "hollow.gguf"
        write_hollow(path, SHAPES[arguments.shape], arguments.type, "hollow")
        if arguments.host is not None:
            found = host_seconds(path, arguments.host, 1800)
            print(f"{1e6 * found[0]:.1f} us at best, {1e6 * found[len(found) // 10]:.1f} in the best tenth")
            return
        if arguments.work is not None:
            kernels_table(kernels_of(path, *_WORK[arguments.work]), compiled)
            return
        print("| step | kernels | GB | ms at least | ms by estimate | tokens/s | of a copy | mean warps |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for work, (sequences, tokens, before) in _WORK.items():
            kinds = kernels_of(path, sequences, tokens, before)
            count, num_bytes = sum(kind.count for kind in kinds), sum(kind.num_bytes for kind in kinds)
            seconds = sum(kind.estimate for kind in kinds)
            warps = sum(kind.estimate * warps_of(kind.kernel, compiled) for kind in kinds) / seconds
            shown = [f"{count}", f"{num_bytes / 1e9:.2f}"]
            shown += [f"{1e3 * each:.2f}" for each in (sum(kind.bound for kind in kinds), seconds)]
            shown += [
                f"{sequences * tokens / seconds:,.0f}",
                f"{num_bytes / seconds / _COPY:.0%}",
                f"{warps:.0f}",
            ]
            print(f"| {work} | {' | '.join(shown)} |", flush=True)


def kernels_table(kinds: Sequence[Kind], compiled: Compiled) -> None:
    """Print each kind of kernel, the longest first, next to its build with free rounding."""
    free = Compiled(_ARCHITECTURE, FREE)
    print(
        "| kernel | of | blocks x threads | count | GB | ms at least | ms by estimate | warps | registers "
        "| spills | instructions | registers, free | instructions, free |"
    )
    print("|---|---|" + "--:|" * 11)
    for kind in sorted(kinds, key=lambda kind: -kind.estimate):
        kernel = kind.kernel
        format = kernel.program.defines[0][1] if kernel.program.defines else ""
        code, other = (each.of(kernel.program)[kernel.name] for each in (compiled, free))
        cells: list[object] = [
            kernel.name,
            format,
            f"{math.prod(kernel.grid)} x {kernel.threads}",
            kind.count,
        ]
        cells += [f"{kind.num_bytes / 1e9:.2f}", f"{1e3 * kind.bound:.3f}", f"{1e3 * kind.estimate:.3f}"]
        cells += [warps_of(kernel, compiled), code.registers, code.spills, code.instructions]
        cells += [other.registers, other.instructions]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
