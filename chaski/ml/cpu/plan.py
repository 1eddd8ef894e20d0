"""Compiling a graph for the native kernels: fuse, order, place every buffer in one arena.

Three passes over the recorded nodes. `lower` turns them into calls of native steps, joining what one step
can do (a sum into the matrix product before it, quantization into the norm before it). `_phases` finds where
threads must wait for each other: only where a call touches what an earlier one wrote. `_place` gives every
buffer an offset; buffers that are never alive in the same phase share memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski import _native
from chaski.forks import keep_in_forks
from chaski.ml.cpu.loading import Loading
from chaski.ml.cpu.lowering import Buffer, Call, Place
from chaski.ml.cpu.operations import lower
from chaski.ml.graph import DType, Graph, KVBuffer

__all__ = ["CPUPlan"]

_ALIGNMENT = 64


class CPUPlan:
    """A graph compiled for one batch size at most, with all the memory that it will ever use."""

    def __init__(
        self,
        graph: Graph,
        pool: _native.ThreadPool,
        isa: str,
        weights: _native.Weights | None,
        is_plain: bool,
        loading: Loading,
    ) -> None:
        lowering = lower(graph, weights, pool.threads, is_plain)
        phases = _phases(lowering.calls)
        kept = [lowering.buffer(node) for node in (*graph.inputs.values(), *graph.outputs.values())]
        offsets, size = _place(lowering.calls, phases, kept)
        self._loading = loading
        self._dims = lowering.dims
        maxima = list(self._dims.values())
        self._plan = _native.Plan(pool, isa, size, list(self._dims), maxima, lowering.in_super_blocks)
        for index, call in enumerate(lowering.calls):
            if index > 0 and phases[index] != phases[index - 1]:
                self._plan.barrier()
            _emit(self._plan, call, offsets)
        self._plan.finish()
        keep_in_forks(self, self._plan)
        self.bytes: int = self._plan.bytes
        self.inputs: Mapping[str, npt.NDArray[Any]] = {
            name: self._view(node.dtype, lowering.buffer(node), offsets)
            for name, node in graph.inputs.items()
        }
        self._outputs = {}
        for name, node in graph.outputs.items():
            rows, width = lowering.extent(node)
            view = self._plan.floats(offsets[lowering.buffer(node)], maxima[rows], width)
            self._outputs[name] = (view, rows)
        self._sizes = maxima
        self._is_running = False

    def launch(self, sizes: Mapping[str, int]) -> None:
        self._sizes = [sizes[name] for name in self._dims]
        self._plan.launch(self._sizes)
        self._is_running = True

    def touch(self) -> None:
        """Take all the memory now."""
        self._plan.touch()

    def wait(self) -> None:
        self._plan.wait()
        if self._is_running:
            self._is_running = False
            self._loading.ran()

    def run(self, sizes: Mapping[str, int]) -> None:
        self.launch(sizes)
        self.wait()

    def output(self, name: str) -> npt.NDArray[np.float32]:
        view, rows = self._outputs[name]
        return view[: self._sizes[rows]]

    def _view(self, dtype: DType, buffer: Buffer, offsets: Mapping[Buffer, int]) -> npt.NDArray[Any]:
        if dtype is DType.F32:
            return self._plan.floats(offsets[buffer], buffer.size // 4 // buffer.width, buffer.width)
        flat = self._plan.ints(offsets[buffer], buffer.size // 4)
        return flat if buffer.width == 1 else flat.reshape(-1, buffer.width)


def _phases(calls: Sequence[Call]) -> list[int]:
    """The phase of every call; threads wait for each other between phases, and only there."""
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
    """Offsets of all buffers and the arena's size: largest first, each at the lowest place that is free."""
    last = phases[-1] if phases else 0
    alive: dict[Buffer, tuple[int, int]] = dict.fromkeys(kept, (0, last))
    for call, phase in zip(calls, phases, strict=True):
        for touched in call.reads | call.writes:
            if isinstance(touched, Buffer):
                first, until = alive.get(touched, (phase, phase))
                alive[touched] = (first, max(until, phase))
    offsets: dict[Buffer, int] = {}
    end = 0
    for buffer in sorted(alive, key=lambda b: b.size, reverse=True):
        rivals = sorted(
            (offsets[other], _aligned(other)) for other in offsets if _overlap(alive[other], alive[buffer])
        )
        offset = 0
        for start, size in rivals:
            if start - offset >= buffer.size:
                break
            offset = max(offset, start + size)
        offsets[buffer] = offset
        end = max(end, offset + _aligned(buffer))
    return offsets, end


def _aligned(buffer: Buffer) -> int:
    return -(-buffer.size // _ALIGNMENT) * _ALIGNMENT


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _emit(plan: _native.Plan, call: Call, offsets: Mapping[Buffer, int]) -> None:
    """Add one step; buffers among the arguments become their offsets, key/value storage its handle."""
    arguments: dict[str, Any] = {}
    for name, value in call.arguments.items():
        if isinstance(value, Buffer):
            value = offsets[value]
        elif isinstance(value, KVBuffer):
            value = value.handle
        arguments[name] = value
    getattr(plan, call.step)(**arguments)
