"""Estimate the time of a model's step on a GPU, kernel by kernel. It needs no GPU.

    python -m benchmarks.gpu_estimate                    Llama 3.1 8B in Q4_K_M on an H200
    python -m benchmarks.gpu_estimate --gpu rtx-4090     the same on another GPU: a100, rtx-4090, t4
    python -m benchmarks.gpu_estimate --work decode      one of the steps, with every kind of kernel
    python -m benchmarks.gpu_estimate --host 1           measure the host time to launch a step

The plans are the backend's own, for a GPU that computes nothing. Compiling each kernel shows its registers,
the number of warps that fit a multiprocessor, and its instructions, both in the normal build and in a build
with free rounding (gpu_compiled.py). It needs nvdisasm, of the package nvidia-cuda-nvdisasm. A kernel reads
matrices, keys and values once. paper_gpu.py states the model of a kernel's time; docs/gpu.md compares it with
measurements. The bound uses the rate of a copy and the nominal rate of the tensor cores, without a time per
kernel. Estimates are not measurements.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu_compiled import FREE, Compiled
from benchmarks.make_models import SHAPES, write_hollow
from benchmarks.paper_gpu import (
    CYCLES,
    GPUS,
    PRODUCTS,
    Figures,
    PaperGPU,
    product_instructions,
    seconds,
    seconds_of_tail,
    waves_of,
    without,
)
from chaski import _native
from chaski.formats.quant import QuantType
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import open_backend
from chaski.ml.backend import BackendOptions
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.cuda.lowering import Kernel, Matrix, Step
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.graph import DType
from chaski.ml.ops import NUM_CHANCES
from chaski.ml.plan import Input
from chaski.model.config import DecoderConfig
from chaski.model.file_dialects import open_model
from chaski.model.program import Program, Run
from chaski.model.registry import build_model
from chaski.model.weights import place_weights

# The kernels that read keys and values, from all cells of a sequence.
_ATTENTION = ("attention", "attention_chunk")
_PER_SCORE = 165 / 32
"""Instructions of warps for a query, a key and its value, read off the machine code."""

_TAIL_MACROS = (
    *("CHASKI_FORMULA", "CHASKI_OPERANDS", "CHASKI_KEYS", "CHASKI_VALUES", "CHASKI_SIZE"),
    *("CHASKI_VALUE_SIZE", "CHASKI_KEY_PART", "CHASKI_VALUE_PART", "CHASKI_PAIRS", "CHASKI_NEOX"),
)
"""The macros of products that end with more; see tail.h."""

_CHUNK = 256
"""Entries of the history that a thread block reads."""

_WORK = {
    "decode": (1, 1, 16),
    "decode behind 32,768": (1, 1, 32768),
    "decode of 8": (8, 1, 512),
    "decode of 16": (16, 1, 512),
    "decode of 64": (64, 1, 16),
    "decode of 256": (256, 1, 16),
    "prefill of 2,048": (1, 512, 1536),
}
"""The numbers of sequences, of tokens of each in a batch, and of tokens before these."""


@dataclass(slots=True)
class Kind:
    """Kernels with the same program and grid: their number, and the bytes and multiply-adds of all."""

    kernel: Kernel
    count: int = 0
    num_bytes: int = 0
    products: int = 0
    block: int = 0
    """The elements of a block of weights, of a row of them, and the panels of 16 rows; 0 without weights."""
    columns: int = 0
    panels: int = 0
    scores: int = 0
    """Of attention: queries times keys of all heads."""
    joined: int = 0
    """Bytes of the chunks that one thread block joins."""

    def bound(self, gpu: Figures) -> float:
        """Return the least possible seconds."""
        return max(self.num_bytes / gpu.copy, self.products / (gpu.tensor * gpu.cores * gpu.clock))

    def estimate(self, gpu: Figures, compiled: Compiled) -> float:
        """Return the estimated seconds. Raises ValueError without a disassembler."""
        kernel, code = self.kernel, compiled.of(self.kernel.program)[self.kernel.name]
        if code.instructions is None:
            raise ValueError("the estimate counts instructions: install nvidia-cuda-nvdisasm")
        is_product = kernel.name in PRODUCTS
        tail = 0.0
        if is_product:
            defines = dict(kernel.program.defines)
            no_tail = without(kernel.program, *_TAIL_MACROS)
            begun = compiled.of(no_tail)[kernel.name]
            plain = compiled.of(without(no_tail, "CHASKI_ROW", "CHASKI_SUPER_BLOCKS"))[kernel.name]
            assert begun.instructions is not None
            assert plain.instructions is not None
            instructions = product_instructions(kernel, plain, self.block, self.columns, self.panels)
            # A norm comes first. At the end, a warp rounds one token after another, of every fourth pair.
            tail = (begun.instructions - plain.instructions) * CYCLES / gpu.clock
            if "CHASKI_FORMULA" in defines or "CHASKI_PAIRS" in defines:
                tokens = -(-int(defines["CHASKI_TOKENS"]) // 4)
                tail += seconds_of_tail(gpu, 0, tokens * (code.instructions - begun.instructions))
        else:
            instructions = self.scores * _PER_SCORE / self.count
            tail = seconds_of_tail(gpu, self.joined, 0) if self.joined else 0.0
        each = seconds(
            gpu,
            num_bytes=self.num_bytes // self.count,
            instructions=instructions,
            products=self.products // self.count if "many" in kernel.name else 0,
            waves=waves_of(gpu, kernel, self.panels),
            once=0 if is_product else code.instructions,
        )
        return self.count * (each + tail)

    def warps(self, gpu: Figures, compiled: Compiled) -> int:
        """Return the number of its warps that a multiprocessor has at a time."""
        code = compiled.of(self.kernel.program)[self.kernel.name]
        blocks = min(gpu.resident(self.kernel, code), -(-math.prod(self.kernel.grid) // gpu.cores))
        return blocks * -(-self.kernel.threads // 32)


def kinds_of(
    steps: Sequence[Step], sizes: Mapping[str, int], sequences: int, tokens: int, history: int, heads: int
) -> Sequence[Kind]:
    """Group the kernels of a run by kind.

    tokens, history   of each sequence; the history includes the tokens
    heads             of queries
    """
    found: dict[tuple[Any, ...], Kind] = {}
    for step in steps:
        kernel = step.choose(sizes)
        if kernel is None:
            continue
        matrices = [each for each in step.arguments if isinstance(each, Matrix)]
        if kernel.name.startswith("embed"):
            matrices = []
        columns = max((each.columns for each in matrices), default=0)
        panels = sum(-(-each.rows // 16) for each in matrices)
        kind = found.setdefault((kernel.name, kernel.program, kernel.grid, columns, panels), Kind(kernel))
        kind.count += 1
        kind.columns, kind.panels = columns, panels
        for matrix in matrices:
            kind.block = QuantType(matrix.type).block_size
            experts = kernel.grid[2]
            kind.num_bytes += experts * _native.matrix_bytes(matrix.type, matrix.rows, matrix.columns)
            kind.products += sequences * tokens * matrix.rows * matrix.columns
        if kernel.name in _ATTENTION:
            stored = [each for each in step.arguments if isinstance(each, KVStorage)]
            kind.num_bytes += sum(sequences * history * each.cell_bytes for each in stored)
            kind.scores += sequences * tokens * history * heads
        if kernel.name == "attention_chunk":
            defines = dict(kernel.program.defines)
            elements = int(defines["CHASKI_HEADS"]) * (int(defines["CHASKI_VALUE_SIZE"]) + 2)
            kind.joined = -(-history // _CHUNK) * elements * 4
    return list(found.values())


@contextmanager
def compiled_model(gpu: Figures, path: Path, sequences: int, context: int) -> Iterator[Program]:
    """Return a model as the backend compiles it."""
    # The angles of a file without content are not numbers.
    with closing(open_backend("cpu")) as host, np.errstate(divide="ignore"):
        backend = CUDABackend(BackendOptions(), PaperGPU(gpu.cores, gpu.shared, gpu.architecture), host)
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


def kernels_of(gpu: Figures, path: Path, sequences: int, tokens: int, before: int) -> Sequence[Kind]:
    """Return the kernels of a batch after earlier batches."""
    with compiled_model(gpu, path, sequences, before + tokens + 256) as program:
        compute(program, sequences, before)
        batch = batch_of(sequences, before, before + tokens)
        program.launch(program.prepare(batch), [40] * sequences)
        plan = program._plan
        assert isinstance(plan, CUDAPlan)
        heads = DecoderConfig.read(open_model(path)).num_heads
        return kinds_of(plan.steps, plan.newest_sizes, sequences, tokens, before + tokens, heads)


def host_seconds(gpu: Figures, path: Path, sequences: int, before: int, steps: int = 1500) -> Sequence[float]:
    """Return the host's seconds to launch each of several steps without the driver, sorted.

    Each step gets the tokens that the previous step chose.
    """
    found = []
    with compiled_model(gpu, path, sequences, before + steps + 256) as program:
        compute(program, sequences, before)
        run: Run | None = None
        for position in range(before, before + steps):
            batch = batch_of(sequences, position, position + 1)
            inputs: dict[str, Input] = {**program.prepare(batch)}
            inputs["num_top_logits"] = np.ones(sequences, np.int32)
            inputs["chances"] = np.zeros((sequences, NUM_CHANCES), np.int32)
            if run is not None:
                run.drop_outputs()
                inputs["tokens"] = run.with_samples(batch.tokens, range(sequences), range(sequences))
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
    parser.add_argument("--gpu", choices=GPUS, default="h200")
    parser.add_argument("--work", choices=_WORK, help="the kernels of this one")
    parser.add_argument("--host", type=int, metavar="SEQUENCES", help="measure the host time of a step")
    arguments = parser.parse_args()
    gpu = GPUS[arguments.gpu]
    compiled = Compiled(gpu.architecture)
    with TemporaryDirectory() as name:
        path = Path(name) / "hollow.gguf"
        write_hollow(path, SHAPES[arguments.shape], arguments.type, "hollow")
        if arguments.host is not None:
            found = host_seconds(gpu, path, arguments.host, 1800)
            print(f"{1e6 * found[0]:.1f} us at best, {1e6 * found[len(found) // 10]:.1f} in the best tenth")
            return
        if arguments.work is not None:
            kernels_table(gpu, kernels_of(gpu, path, *_WORK[arguments.work]), compiled)
            return
        print("| step | kernels | GB | ms at least | ms by estimate | tokens/s | of a copy | mean warps |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for work, (sequences, tokens, before) in _WORK.items():
            kinds = kernels_of(gpu, path, sequences, tokens, before)
            times = [kind.estimate(gpu, compiled) for kind in kinds]
            count, num_bytes = sum(kind.count for kind in kinds), sum(kind.num_bytes for kind in kinds)
            all_warps = (time * kind.warps(gpu, compiled) for time, kind in zip(times, kinds, strict=True))
            shown = [f"{count}", f"{num_bytes / 1e9:.2f}"]
            shown += [f"{1e3 * each:.2f}" for each in (sum(kind.bound(gpu) for kind in kinds), sum(times))]
            shown += [
                f"{sequences * tokens / sum(times):,.0f}",
                f"{num_bytes / sum(times) / gpu.copy:.0%}",
                f"{sum(all_warps) / sum(times):.0f}",
            ]
            print(f"| {work} | {' | '.join(shown)} |", flush=True)


def kernels_table(gpu: Figures, kinds: Sequence[Kind], compiled: Compiled) -> None:
    """Print each kind of kernel, the longest first, next to its build with free rounding."""
    free = Compiled(gpu.architecture, FREE)
    print(
        "| kernel | of | blocks x threads | count | GB | ms at least | ms by estimate | us of one | warps "
        "| registers | spills | instructions | registers, free | instructions, free |"
    )
    print("|---|---|" + "--:|" * 12)
    for kind in sorted(kinds, key=lambda kind: -kind.estimate(gpu, compiled)):
        kernel, time = kind.kernel, kind.estimate(gpu, compiled)
        format = kernel.program.defines[0][1] if kernel.program.defines else ""
        code, other = (each.of(kernel.program)[kernel.name] for each in (compiled, free))
        cells: list[object] = [
            kernel.name,
            format,
            f"{math.prod(kernel.grid)} x {kernel.threads}",
            kind.count,
        ]
        cells += [f"{kind.num_bytes / 1e9:.2f}", f"{1e3 * kind.bound(gpu):.3f}", f"{1e3 * time:.3f}"]
        cells += [f"{1e6 * time / kind.count:.1f}", kind.warps(gpu, compiled), code.registers, code.spills]
        cells += [code.instructions, other.registers, other.instructions]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
