"""Recording of the runs of one plan in a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml.cpu.lowering import Buffer, Call
from chaski.ml.graph import KVBuffer
from chaski.ml.trace import PlanTrace, TracedRun, TracedStep

__all__ = ["Tracer", "traced_step"]

_Matrix = _native.WeightMatrix | _native.ExpertStack


class Tracer:
    """Recorder of a plan's runs. `steps` are the steps of the native plan."""

    def __init__(self, trace: PlanTrace, steps: Sequence[TracedStep], plan: _native.Plan) -> None:
        self._trace = trace
        self._steps = steps
        self._plan = plan
        self._sizes: Mapping[str, int] = {}
        self._launched = self._joined = 0
        plan.trace()

    def launch(self, sizes: Mapping[str, int]) -> None:
        """Record that a run begins."""
        self._sizes, self._launched = sizes, _native.steady_nanoseconds()

    def join(self) -> None:
        """Record that the caller begins to compute as well."""
        self._joined = _native.steady_nanoseconds()

    def end(self) -> None:
        """Record that the run is computed."""
        ended = _native.steady_nanoseconds()
        pieces = self._plan.pieces()
        self._trace.runs.append(
            TracedRun(self._steps, self._sizes, self._launched, self._joined, ended, pieces)
        )


def traced_step(call: Call, dims: Sequence[str]) -> TracedStep:
    """Describe the step of a call; `dims` are the names of the run-time dimensions."""
    arguments = call.arguments
    matrices = [matrix for argument in arguments.values() for matrix in _matrices(argument)]
    row_bytes = {
        name: _native.quantized_bytes(buffer.width) if name == "quantized" else 4 * buffer.width
        for name, argument in arguments.items()
        for buffer in (argument if isinstance(argument, tuple) else (argument,))
        if isinstance(buffer, Buffer)
    }
    # Every thread that multiplies by rows of a matrix reads all activations.
    inputs = ("x", "quantized") if call.step in ("matmul", "adapted_matmul") else ()
    shared = sum(row_bytes.pop(name, 0) for name in inputs)
    return TracedStep(
        call.step,
        _words(matrices),
        sum(map(_bytes_of, matrices)),
        _row_share(call, matrices),
        dims[arguments["dim"]] if "dim" in arguments else None,
        sum(row_bytes.values()),
        shared,
        dims[arguments["history"]] if "history" in arguments else None,
        sum(_cell_bytes(place) for place in dict.fromkeys(call.reads) if isinstance(place, KVBuffer)),
    )


def _matrices(argument: object) -> Sequence[_Matrix]:
    """Return the matrices of a step's argument; of a stack in a store, one for each of its experts."""
    if isinstance(argument, _native.ExpertStack):
        return [argument] * len(argument)
    given = argument if isinstance(argument, list) else [argument]
    return [matrix for matrix in given if isinstance(matrix, _native.WeightMatrix)]


def _words(matrices: Sequence[_Matrix]) -> str:
    if not matrices:
        return ""
    first = matrices[0]
    count = f"{len(matrices)} of " if len(matrices) > 1 else ""
    return f"{count}{QuantType(first.type).name} {first.rows} × {first.columns}"


def _row_share(call: Call, matrices: Sequence[_Matrix]) -> float:
    """Return the share of the matrices that one row reads: one row of a table, or the chosen experts."""
    if call.step == "embedding":
        return 1 / matrices[0].rows
    return call.arguments["count"] / len(matrices) if call.step == "expert_matmul" else 1.0


def _cell_bytes(buffer: KVBuffer) -> int:
    assert isinstance(buffer.handle, _native.KVStorage)
    return buffer.handle.bytes // buffer.cells


def _bytes_of(matrix: _Matrix) -> int:
    return _native.matrix_bytes(matrix.type, matrix.rows, matrix.columns)
