"""The Python side of the native backend: weights, key/value storage, devices, memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chaski import _native
from chaski.errors import OptionError, OutOfMemoryError, UnsupportedError
from chaski.forks import keep_in_forks
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import TensorInfo
from chaski.ml.backend import (
    HOST,
    BackendOptions,
    ByDevice,
    CacheConfig,
    CPUOptions,
    Device,
    DeviceMemory,
    Memory,
    ProgressCallback,
    stored_type,
)
from chaski.ml.cpu.adapter_slots import CPUAdapterSlots
from chaski.ml.cpu.experts import ExpertMemory, is_experts
from chaski.ml.cpu.loading import Loading
from chaski.ml.cpu.lowering import Vector
from chaski.ml.cpu.partly_loaded import PartlyLoaded, spread
from chaski.ml.cpu.plan import Computing, CPUPlan
from chaski.ml.cpu.small_pages import SmallPages
from chaski.ml.cpu.stored_cells import StoredCells
from chaski.ml.cpu.variants import KernelVariants
from chaski.ml.cpu.weight_files import StoredMatrix, laid_out_type
from chaski.ml.graph import AdapterTable, DType, Graph, KVBuffer, KVRole, Weight
from chaski.ml.limits import address_space_note
from chaski.ml.machine import (
    available_memory,
    cpu_name,
    memory_nodes,
    physical_cores,
    spare_memory,
    total_memory,
)

__all__ = ["CPUBackend"]

_log = logging.getLogger(__name__)

# The largest share of the machine's memory that matrices may take. Larger ones stay in their files.
_MOST = 0.9


class CPUBackend:
    """A backend with the native kernels of one instruction set, which is chosen when it is opened."""

    name = "cpu"
    rule = f"native {_native.rule_version()}"
    default_kv_dtype = DType.I16
    cache_config = CacheConfig(alignment=16)  # tokens of a panel of keys
    stages = 1
    launches_ahead = False

    def __init__(
        self,
        options: BackendOptions,
        cpu: CPUOptions,
        pool: _native.ThreadPool | None = None,
        variants: KernelVariants | None = None,
    ) -> None:
        """Start threads, or take the `pool` and the `variants` of another backend."""
        threads = physical_cores() if cpu.threads is None else cpu.threads
        if threads < 1:
            raise OptionError(f"threads = {threads} must be at least 1")
        self.isa = _choose_isa(cpu.isa)
        self.threads = threads
        self._is_plain = not options.flash_attention
        self._options = options, cpu
        self._pool = pool or _started(threads)
        nodes = memory_nodes()
        _native.spread_memory(nodes if len(nodes) > 1 else [])
        self._variants = variants or KernelVariants(cpu.variants, self.isa, threads)
        keep_in_forks(self, self._pool)
        self._loading = Loading(self._pool, self.isa)
        self._vector_memory: _native.Weights | None = None
        self._matrices: list[StoredMatrix] = []
        self._vectors: list[tuple[Weight, TensorInfo, Vector]] = []
        self._small_pages = SmallPages()
        self._untouched: list[_native.KVStorage | CPUPlan] = []
        self._weight_bytes = self._shared_bytes = self._cache_bytes = self._plan_bytes = 0
        self._growing_bytes = 0
        self._partly: PartlyLoaded | None = None
        self._experts: ExpertMemory | None = None

    def devices(self) -> Sequence[Device]:
        return [
            Device(
                HOST,
                cpu_name(),
                physical_cores(),
                tuple(_native.isa_names()),
                total_memory(),
                available_memory(),
                self._variants.picks(),
            )
        ]

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        weights = self._without_stored_experts(weights)
        self._matrices, self._vectors, matrix_bytes, vector_bytes = _layout(weights)
        if matrix_bytes > _MOST * total_memory():
            self._matrices, self._vectors, *_ = _layout(spread(weights))
            self._partly = PartlyLoaded(self._matrices, [weight.name for weight, _ in weights], self.threads)
        with _reserving("weights", matrix_bytes + vector_bytes):
            self._vector_memory = _native.Weights(vector_bytes)
            memory = self._matrix_memory(matrix_bytes)
        self._weight_bytes = vector_bytes + (matrix_bytes if self._partly is None else 0)
        for weight, _, vector in self._vectors:
            weight.handle = vector
        for matrix in self._matrices:
            info = matrix.info
            rows, columns = info.shape[-2:]
            is_interleaved = matrix.type is not info.type
            target = memory.matrix(
                matrix.offset, int(matrix.type), rows, columns, matrix.stride, is_interleaved
            )
            if len(info.shape) == 2:
                matrix.weight.handle = target
            elif matrix.index == 0:
                matrix.weight.handle = [target]
            else:
                assert isinstance(matrix.weight.handle, list)
                matrix.weight.handle.append(target)

    def _without_stored_experts(
        self, weights: Sequence[tuple[Weight, TensorInfo]]
    ) -> Sequence[tuple[Weight, TensorInfo]]:
        """Return the weights that are loaded as a whole: without experts that a store has to read."""
        experts = [pair for pair in weights if is_experts(*pair)]
        asked = self._options[1].expert_memory
        if not experts:
            return weights
        matrices, _, size, vector_bytes = _layout(weights)
        others = [pair for pair in weights if not is_experts(*pair)]
        expert_bytes = size - _layout(others)[2]
        if asked is None:
            if size + vector_bytes <= min(_MOST * total_memory(), available_memory()):
                return weights
            if self._loading.is_shared(matrices, size):
                return weights
        elif expert_bytes <= asked:
            return weights
        store = ExpertMemory(self.isa, experts)
        if not store.plan(asked, available_memory() - (size - expert_bytes) - vector_bytes):
            return weights
        self._experts = store
        self._loading.keep_reading(store)
        return others

    def _matrix_memory(self, size: int) -> _native.Weights:
        """Reserve memory for all matrices; only addresses if they stay in their files."""
        if self._partly is not None:
            self._loading.stay_in_files(self._partly)
            return _native.Weights(size)
        shared = self._loading.open(self._matrices, size)
        if shared is None:
            return _native.Weights(size)
        self._shared_bytes = size if shared.is_taken else 0
        return _native.Weights(size, shared.descriptor)

    def load(self, progress: ProgressCallback) -> None:
        self._small_pages.end()
        total = self.memory().to_take
        free = available_memory()
        if total > free:
            raise _out_of_memory("weights, caches and plans", total)
        if self._experts is not None:
            self._experts.start(self._options[1].expert_memory, total - self._experts.budget)
            _log.warning(
                "weights %s, %s of memory free: experts are read from the disk, with %s of memory for those "
                "that are chosen most",
                _amount(self._weight_bytes + self._experts.total_bytes),
                _amount(free),
                _amount(self._experts.budget),
            )
        for _, info, vector in self._vectors:
            assert self._vector_memory is not None
            values = dequantize(info.data, info.type, info.shape)
            self._vector_memory.vector(vector.offset, values.size)[:] = values.ravel()
        self._loading.load(self._matrices, self._untouched, self._growing_bytes, progress)
        if self._partly is not None:
            _log.warning(
                "weights %s, %s of memory in all: every batch reads %s of them from the disk; a smaller "
                "model or quantization is much faster",
                _amount(self._partly.held_bytes + self._partly.file_bytes),
                _amount(total_memory()),
                _amount(self._partly.file_bytes),
            )
        self._matrices, self._vectors, self._untouched = [], [], []

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        layout = _layout_of(role, cells, heads, size, dtype)
        grows = self._options[1].grows and role is not KVRole.STATES
        if grows:
            self._small_pages.begin()
        with _reserving("key/value storage", _native.kv_storage_bytes(*layout)):
            storage = _native.kv_storage(*layout)
        if grows:
            self._growing_bytes += storage.bytes
        else:
            self._untouched.append(storage)
        self._cache_bytes += storage.bytes
        return KVBuffer(role, cells, heads, size, dtype, storage)

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        return {HOST: _native.kv_storage_bytes(*_layout_of(role, cells, heads, size, dtype))}

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> StoredCells:
        return StoredCells(self._pool, self.isa, [buffer.handle for buffer in buffers])

    def compile(self, graph: Graph) -> CPUPlan:
        self._small_pages.end()
        computing = Computing(
            pool=self._pool,
            isa=self.isa,
            loading=self._loading,
            variants=self._variants,
            weights=self._vector_memory,
            weight_bytes=self._weight_bytes,
            is_plain=self._is_plain,
            trace=self._options[1].trace,
        )
        plan = CPUPlan(graph, computing)
        self._untouched.append(plan)
        self._plan_bytes += plan.bytes
        return plan

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        return AdapterTable(slots, matrices, max_width, CPUAdapterSlots(slots, matrices))

    def sibling(self) -> CPUBackend:
        return CPUBackend(*self._options, self._pool, self._variants)

    def memory(self) -> Memory:
        experts = 0 if self._experts is None else self._experts.budget
        others = 0 if self._experts is None else self._experts.total_bytes - experts
        held, read = (0, 0) if self._partly is None else (self._partly.held_bytes, self._partly.file_bytes)
        memory = DeviceMemory(
            HOST,
            self._weight_bytes + experts + held,
            self._cache_bytes,
            self._plan_bytes,
            self._shared_bytes,
            read + others,
            fillable=read + (others if self._options[1].expert_memory is None else 0),
            spare=spare_memory() if self._partly is None else self._partly.spare,
        )
        return Memory((memory,), () if self._experts is None else self._experts.layers())

    def wait_loaded(self) -> None:
        self._loading.wait_loaded()

    def close(self) -> None:
        self._loading.close()
        self._vector_memory = None
        self._matrices, self._vectors, self._untouched = [], [], []
        self._weight_bytes = self._shared_bytes = self._cache_bytes = self._plan_bytes = 0
        self._partly = None
        self._experts = None


def _layout_of(
    role: KVRole, cells: int, heads: int, size: int, dtype: DType
) -> tuple[int, int, int, int, bool]:
    return cells, heads, size, int(stored_type(role, size, dtype)), role is KVRole.KEYS


def _started(threads: int) -> _native.ThreadPool:
    """Start threads. Raises OutOfMemoryError if the system refuses one."""
    try:
        return _native.ThreadPool(threads)
    except RuntimeError as error:
        raise OutOfMemoryError(
            f"{threads} threads cannot be started: {error}; use fewer threads (CHASKI_THREADS), or raise the "
            "limit of processes (ulimit -u)"
        ) from None


def _choose_isa(name: str) -> str:
    known = _native.isa_names()
    if not known:
        raise UnsupportedError("chaski was compiled for another processor; install it again on this machine")
    if name == "auto":
        return known[-1]
    if name not in known:
        raise OptionError(f"instruction set {name!r} is not available; this machine has: {', '.join(known)}")
    return name


def _layout(
    weights: Sequence[tuple[Weight, TensorInfo]],
) -> tuple[list[StoredMatrix], list[tuple[Weight, TensorInfo, Vector]], int, int]:
    """Give every weight its place -> matrices, vectors, and the bytes of both, which have separate memory."""
    matrices, vectors, matrix_bytes, vector_bytes = [], [], 0, 0
    for weight, info in weights:
        if len(info.shape) == 1 or weight.plain:
            vectors.append((weight, info, Vector(vector_bytes)))
            vector_bytes += _aligned(4 * math.prod(info.shape))
        elif len(info.shape) in (2, 3) and (type := laid_out_type(info.type)) in _native.matrix_types():
            step = _native.matrix_bytes(int(type), *info.shape[-2:])
            count = math.prod(info.shape[:-2])
            places = range(matrix_bytes, matrix_bytes + count * step, step)
            matrices += [StoredMatrix(weight, info, index, place) for index, place in enumerate(places)]
            matrix_bytes += _aligned(count * step)
        else:
            raise UnsupportedError(
                f"tensor {info.name}: no kernels for {info.type.name} of shape {info.shape}"
            )
    return matrices, vectors, matrix_bytes, vector_bytes


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


@contextmanager
def _reserving(what: str, size: int) -> Iterator[None]:
    """Turn a failed allocation into OutOfMemoryError."""
    try:
        yield
    except MemoryError:
        raise _out_of_memory(what, size) from None


def _out_of_memory(what: str, size: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{what} need {_amount(size)}, but {_amount(available_memory())} of memory are available"
        f"{address_space_note()}; use a smaller context, fewer parallel sequences or a smaller model"
    )


def _amount(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
