"""Compiling a graph for the native kernels: fuse, order, place every buffer in one arena.

Compiling makes three passes over the recorded nodes. `lower` turns them into calls of native steps and fuses
what one step can do: a sum into the matrix product before it, quantization into the norm before it. `_phases`
finds where threads must wait for each other, which is only where a call touches what an earlier one wrote.
`_place` gives every buffer an offset; buffers that are never alive in the same phase share memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski import _native
from chaski.forks import keep_in_forks
from chaski.ml.arena import Buffer, placed
from chaski.ml.cpu.loading import Loading
from chaski.ml.cpu.lowering import Call, Place
from chaski.ml.cpu.operations import lower
from chaski.ml.cpu.tracing import Tracer, traced_step
from chaski.ml.cpu.variants import KernelVariants
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, Tensor
from chaski.ml.machine import largest_cache
from chaski.ml.plan import Input, misfit
from chaski.ml.trace import PlanTrace, TracedStep

__all__ = ["CPUPlan", "Computing"]

F32 = npt.NDArray[np.float32]


class Computing(Struct, frozen=True):
    """The shared resources of the plans of a backend.

    weights       vectors of the model; None if no weights are placed
    weight_bytes  bytes of all weights, which determine the kernels
    is_plain      whether attention takes its plain form
    trace         the trace that records the runs; None for none
    """

    pool: _native.ThreadPool
    isa: str
    loading: Loading
    variants: KernelVariants
    weights: _native.Weights | None
    weight_bytes: int
    is_plain: bool
    trace: PlanTrace | None


class CPUPlan:
    """A graph that is compiled for a largest batch size, with all the memory that it will ever use."""

    def __init__(self, graph: Graph, computing: Computing) -> None:
        pool, trace = computing.pool, computing.trace
        cut_for = pool.threads if trace is None or trace.cut_for is None else trace.cut_for
        lowering = lower(graph, computing.weights, cut_for, computing.is_plain)
        phases = _phases(lowering.calls)
        kept = [lowering.buffer(node) for node in (*graph.inputs.values(), *graph.outputs.values())]
        offsets, size = _place(lowering.calls, phases, kept)
        self._loading = computing.loading
        self._variants = computing.variants
        self._dims = lowering.dims
        maxima = list(self._dims.values())
        self._plan = _native.Plan(
            pool,
            computing.isa,
            computing.variants.of(computing.weight_bytes),
            size,
            list(self._dims),
            maxima,
            lowering.rounding.in_super_blocks,
            cut_for,
        )
        steps: list[TracedStep] = []
        for index, call in enumerate(lowering.calls):
            if index > 0 and phases[index] != phases[index - 1]:
                self._plan.barrier()
            _emit(self._plan, call, offsets)
            if trace is not None:
                steps += [traced_step(call, list(self._dims))] * (self._plan.num_steps - len(steps))
        self._plan.finish()
        self._tracer = None if trace is None else Tracer(trace, steps, self._plan)
        keep_in_forks(self, self._plan)
        self.bytes: int = self._plan.bytes
        self._inputs = {
            name: (self._view(node.dtype, lowering.buffer(node), offsets), *_leading(node))
            for name, node in graph.inputs.items()
        }
        self._outputs = {}
        for name, node in graph.outputs.items():
            rows, width = lowering.extent(node)
            view = self._plan.floats(offsets[lowering.buffer(node)], maxima[rows], width)
            self._outputs[name] = (view, rows)
        self._newest: weakref.ref[CPULaunch] | None = None
        self.is_running = False
        # Half, since other data need the cache too, and the first weights must stay until the last are read.
        self.bytes_to_read_ahead: int = largest_cache() // 2

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> CPULaunch:
        if self.is_running:
            self.wait()
        places = self._inputs
        if inputs.keys() != places.keys():
            raise misfit(inputs, places)
        given = dict(sizes) if sizes else {}
        for name, value in inputs.items():
            view, dim, most = places[name]
            size = len(value)
            if given.setdefault(dim, size) != size or size > most:
                raise ValueError(
                    f"input {name} has {size} rows; it needs {dim} = {given[dim]}, at most {most}"
                )
            view[:size] = value
        if self._newest is not None and (newest := self._newest()) is not None:
            newest.keep()
        run_sizes = [given[dim] for dim in self._dims]
        if self._tracer is not None:
            self._tracer.launch(dict(zip(self._dims, run_sizes, strict=True)))
        self._plan.launch(run_sizes)
        self.is_running = True
        launch = CPULaunch(self, self._outputs, run_sizes)
        self._newest = weakref.ref(launch)
        return launch

    def read_ahead(self, descriptor: int, most: int) -> int | None:
        self.wait()
        return self._plan.read_ahead(descriptor, most)

    def touch(self) -> None:
        """Allocate all memory now."""
        self._plan.touch()

    def wait(self) -> None:
        """Wait for the computation that was launched last."""
        if self.is_running:
            if self._tracer is not None:
                self._tracer.join()
            self._plan.wait()
            if self._tracer is not None:
                self._tracer.end()
            self.is_running = False
            self._loading.ran(list(self._dims))
            self._variants.keep()

    def _view(self, dtype: DType, buffer: Buffer, offsets: Mapping[Buffer, int]) -> npt.NDArray[Any]:
        if dtype is DType.F32:
            return self._plan.floats(offsets[buffer], buffer.size // 4 // buffer.width, buffer.width)
        flat = self._plan.ints(offsets[buffer], buffer.size // 4)
        return flat if buffer.width == 1 else flat.reshape(-1, buffer.width)


class CPULaunch:
    """A run. Its results lie in the arena until the next run."""

    __slots__ = ("__weakref__", "_kept", "_plan", "_sizes", "_views")

    def __init__(self, plan: CPUPlan, views: Mapping[str, tuple[F32, int]], sizes: Sequence[int]) -> None:
        """`views`: each result in the arena, and the index in `sizes` of its number of rows."""
        self._plan = plan
        self._views = views
        self._sizes = sizes
        self._kept: Mapping[str, F32] | None = None

    def wait(self) -> None:
        if self._kept is None and self._plan.is_running:
            self._plan.wait()

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> F32:
        if self._kept is not None:
            return self._kept[output][begin:end]
        if self._plan.is_running:
            self._plan.wait()
        view, dim = self._views[output]
        size = self._sizes[dim]
        return view[begin : size if end is None else min(end, size)]

    def drop(self, output: str) -> None:
        """Do nothing: on a processor, a caller that launches again has read all results."""

    def keep(self) -> None:
        """Copy the computed results before the next run overwrites them."""
        self._kept = {name: view[: self._sizes[dim]].copy() for name, (view, dim) in self._views.items()}


def _leading(node: Tensor) -> tuple[str, int]:
    """Return the name of an input's run-time dimension, and its maximum."""
    leading = node.shape[0]
    assert isinstance(leading, Dim), "the leading dimension of an input must be a run-time one"
    return leading.name, leading.maximum


def _phases(calls: Sequence[Call]) -> list[int]:
    """Return the phase of every call. Threads wait for each other only between phases."""
    phases: list[int] = []
    phase = 0
    read: set[Place] = set()
    written: set[Place] = set()
    for call in calls:
        if written & call.reads or (written | read) & call.writes:
            phase += 1
            read, written = set(), set()
        read |= call.reads
        written |= call.writes
        phases.append(phase)
    return phases


def _place(
    calls: Sequence[Call], phases: Sequence[int], kept: Sequence[Buffer]
) -> tuple[dict[Buffer, int], int]:
    """Return the offsets of all buffers, and the arena's size."""
    last = phases[-1] if phases else 0
    alive: dict[Buffer, tuple[int, int]] = dict.fromkeys(kept, (0, last))
    for call, phase in zip(calls, phases, strict=True):
        for touched in call.reads | call.writes:
            if isinstance(touched, Buffer):
                first, until = alive.get(touched, (phase, phase))
                alive[touched] = (first, max(until, phase))
    return placed(alive)


def _emit(plan: _native.Plan, call: Call, offsets: Mapping[Buffer, int]) -> None:
    """Add one step to a plan. Buffers become their offsets, and key/value storage becomes its handle."""

    def native(value: Any) -> Any:
        if isinstance(value, Buffer):
            return offsets[value]
        if isinstance(value, tuple):
            return [native(item) for item in value]
        return value.handle if isinstance(value, KVBuffer) else value

    getattr(plan, call.step)(**{name: native(value) for name, value in call.arguments.items()})
