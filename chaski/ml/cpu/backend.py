"""The Python side of the native backend: weights, key/value storage, devices, memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaski import _native
from chaski.errors import ModelError, OptionError, OutOfMemoryError, UnsupportedError
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import dequantize
from chaski.ml.backend import BackendOptions, CacheConfig, Device, Memory, Progress, stored_type
from chaski.ml.cpu.lowering import Vector
from chaski.ml.cpu.plan import CPUPlan
from chaski.ml.graph import DType, Graph, KVBuffer, KVRole, Weight
from chaski.ml.machine import available_memory, cpu_name, physical_cores, total_memory

__all__ = ["CPUBackend"]

# Matrices are loaded in groups of about this size, so that progress can be shown between them.
_GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix of a file, the `index`-th of those of its tensor, and where it goes in the weights' memory."""

    weight: Weight
    info: TensorInfo
    index: int
    offset: int

    @property
    def num_bytes(self) -> int:
        return self.info.nbytes // self.count

    @property
    def count(self) -> int:
        """How many matrices the tensor has."""
        return math.prod(self.info.shape[:-2])

    def target(self) -> _native.WeightMatrix:
        handle = self.weight.handle
        target = handle[self.index] if isinstance(handle, list) else handle
        assert isinstance(target, _native.WeightMatrix)
        return target


class CPUBackend:
    """Computes with the native kernels of one instruction set, chosen when it is opened."""

    name = "cpu"
    default_kv_dtype = DType.F16
    cache_config = CacheConfig(alignment=16)  # tokens of a panel of keys

    def __init__(self, options: BackendOptions, pool: _native.ThreadPool | None = None) -> None:
        """`pool`: threads of another backend to compute with, instead of new ones."""
        threads = physical_cores() if options.threads is None else options.threads
        if threads < 1:
            raise OptionError(f"threads = {threads} must be at least 1")
        self.isa = _choose_isa(options.isa)
        self.threads = threads
        self._is_plain = not options.flash_attention
        self._options = options
        self._pool = pool or _native.ThreadPool(threads)
        self._weights: _native.Weights | None = None
        self._matrices: list[_Matrix] = []
        self._vectors: list[tuple[Weight, TensorInfo, Vector]] = []
        self._untouched: list[_native.KVStorage | CPUPlan] = []
        self._weight_bytes = self._cache_bytes = self._plan_bytes = 0

    def devices(self) -> Sequence[Device]:
        return [
            Device(
                cpu_name(),
                "cpu",
                physical_cores(),
                tuple(_native.isa_names()),
                total_memory(),
                available_memory(),
            )
        ]

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        self._matrices, self._vectors, self._weight_bytes = _layout(weights)
        with _reserving("weights", self._weight_bytes):
            self._weights = _native.Weights(self._weight_bytes)
        for weight, _, vector in self._vectors:
            weight.handle = vector
        for matrix in self._matrices:
            info = matrix.info
            target = self._weights.matrix(matrix.offset, int(info.type), *info.shape[-2:])
            if len(info.shape) == 2:
                matrix.weight.handle = target
            elif matrix.index == 0:
                matrix.weight.handle = [target]
            else:
                assert isinstance(matrix.weight.handle, list)
                matrix.weight.handle.append(target)

    def load(self, progress: Progress) -> None:
        memory = self.memory()
        if memory.total > available_memory():
            raise _out_of_memory("weights, caches and plans", memory.total)
        for part in self._untouched:
            part.touch()
        self._untouched = []
        for _, info, vector in self._vectors:
            assert self._weights is not None
            values = dequantize(info.data, info.type, info.shape)
            self._weights.vector(vector.offset, values.size)[:] = values.ravel()
        loaded = 0
        for group in _groups(self._matrices):
            self._load(group)
            loaded += sum(matrix.num_bytes for matrix in group)
            progress(min(1.0, loaded / self._weight_bytes))
        progress(1.0)
        self._matrices, self._vectors = [], []

    def kv_buffer(self, role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> KVBuffer:
        with _reserving("key/value storage", self.kv_bytes(role, cells, heads, size, dtype)):
            storage = _native.kv_storage(*_layout_of(role, cells, heads, size, dtype))
        self._untouched.append(storage)
        self._cache_bytes += storage.bytes
        return KVBuffer(role, cells, heads, size, dtype, storage)

    def kv_bytes(self, role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> int:
        return _native.kv_storage_bytes(*_layout_of(role, cells, heads, size, dtype))

    def compile(self, graph: Graph) -> CPUPlan:
        plan = CPUPlan(graph, self._pool, self.isa, self._weights, self._is_plain)
        self._untouched.append(plan)
        self._plan_bytes += plan.bytes
        return plan

    def beside(self) -> CPUBackend:
        return CPUBackend(self._options, self._pool)

    def memory(self) -> Memory:
        return Memory(self._weight_bytes, self._cache_bytes, self._plan_bytes)

    def close(self) -> None:
        self._weights = None
        self._matrices, self._vectors, self._untouched = [], [], []
        self._weight_bytes = self._cache_bytes = self._plan_bytes = 0

    def _load(self, group: Sequence[_Matrix]) -> None:
        descriptors: dict[Path, int] = {}
        try:
            sources = []
            for matrix in group:
                info = matrix.info
                if info.path not in descriptors:
                    descriptors[info.path] = os.open(info.path, os.O_RDONLY)
                place = info.offset + matrix.index * (info.step or matrix.num_bytes)
                sources.append((descriptors[info.path], place, matrix.target()))
            _native.load_matrices(self._pool, self.isa, sources)
        except (OSError, RuntimeError) as error:
            raise ModelError(f"the weights of {group[0].info.path} cannot be read: {error}") from error
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)


def _layout_of(
    role: KVRole, cells: int, heads: int, size: int, dtype: DType
) -> tuple[int, int, int, int, bool]:
    return cells, heads, size, int(stored_type(role, size, dtype)), role is KVRole.KEYS


def _choose_isa(name: str) -> str:
    known = _native.isa_names()
    if name == "auto":
        return known[-1]
    if name not in known:
        raise OptionError(f"instruction set {name!r} is not available; this machine has: {', '.join(known)}")
    return name


def _layout(
    weights: Sequence[tuple[Weight, TensorInfo]],
) -> tuple[list[_Matrix], list[tuple[Weight, TensorInfo, Vector]], int]:
    """Give every weight its place -> matrices, vectors, bytes in all."""
    matrices, vectors, offset = [], [], 0
    for weight, info in weights:
        if len(info.shape) == 1 or weight.plain:
            vectors.append((weight, info, Vector(offset)))
            size = 4 * math.prod(info.shape)
        elif len(info.shape) in (2, 3) and int(info.type) in _native.matrix_types():
            step = _native.matrix_bytes(int(info.type), *info.shape[-2:])
            count = math.prod(info.shape[:-2])
            matrices += [_Matrix(weight, info, index, offset + index * step) for index in range(count)]
            size = count * step
        else:
            raise UnsupportedError(
                f"tensor {info.name}: no kernels for {info.type.name} of shape {info.shape}"
            )
        offset += -(-size // 64) * 64
    return matrices, vectors, offset


def _groups(matrices: Sequence[_Matrix]) -> Iterator[list[_Matrix]]:
    group: list[_Matrix] = []
    for matrix in matrices:
        group.append(matrix)
        if sum(m.num_bytes for m in group) >= _GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


@contextmanager
def _reserving(what: str, size: int) -> Iterator[None]:
    """Turn a failed allocation into OutOfMemoryError."""
    try:
        yield
    except MemoryError:
        raise _out_of_memory(what, size) from None


def _out_of_memory(what: str, size: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{what} need {size / 1e9:.2f} GB, but {available_memory() / 1e9:.2f} GB of memory are available; "
        "use a smaller context, fewer parallel sequences or a smaller model"
    )
