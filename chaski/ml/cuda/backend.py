"""The CUDA backend: weights, key/value storage and plans on one NVIDIA GPU."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski import _native
from chaski.errors import OutOfMemoryError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import TensorInfo
from chaski.ml.arena import aligned
from chaski.ml.backend import (
    Backend,
    BackendOptions,
    ByDevice,
    CacheConfig,
    Device,
    DeviceMemory,
    Memory,
    ProgressCallback,
)
from chaski.ml.cpu.weight_files import laid_out_type, unreadable
from chaski.ml.cuda.adapter_slots import CUDAAdapterSlots
from chaski.ml.cuda.cells import CUDACells
from chaski.ml.cuda.device import GPU
from chaski.ml.cuda.lowering import Matrix
from chaski.ml.cuda.plan import CUDAPlan
from chaski.ml.cuda.storage import KVStorage, num_bytes
from chaski.ml.cuda.workspace import Workspace
from chaski.ml.graph import AdapterTable, DType, Graph, KVBuffer, KVRole, Weight
from chaski.ml.machine import usable_processors

__all__ = ["CUDABackend"]

_ALIGNMENT = 256
# Bytes of matrices that the host lays out at a time, before they are copied.
_GROUP = 256 << 20
# The version of this backend's part of the rule. The native core defines most of it, and the host computes
# some values.
_RULE = 1


_Source = tuple[TensorInfo, int, Matrix]
"""A tensor, the number of the matrix in it, and the matrix on the device."""


class Region:
    """Memory of the device that holds weights."""

    def __init__(self) -> None:
        self.address = 0


class Vector:
    """A one-dimensional or plain weight, in floats."""

    def __init__(self, region: Region, offset: int) -> None:
        self._region, self.offset = region, offset

    @property
    def address(self) -> int:
        """The address of its first byte on the device."""
        return self._region.address + self.offset


class _File:
    """A file of weights. It stays open, so that it may be deleted. `close` ends that."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises ModelError if it cannot be opened."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(path, str(error)) from error
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.native = _native.WeightFile(self._descriptor)

    def vector(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        """Read a tensor whose bytes are consecutive, as floats. Raises ModelError if it cannot be read."""
        try:
            found = os.pread(self._descriptor, info.nbytes, info.offset)
        except OSError as error:
            raise unreadable(self._path, str(error)) from error
        if len(found) < info.nbytes:
            raise unreadable(self._path, f"{info.name} is missing, because the file has become shorter")
        blocks = np.frombuffer(found, np.uint8).reshape(info.data.shape)
        return np.ascontiguousarray(dequantize(blocks, info.type, info.shape), np.float32)


class CUDABackend:
    """A backend on one GPU. Its kernels are compiled when they are first needed.

    Storage, weights, results and the host's copies of them are bit-identical to the cpu backend's.
    """

    name = "cuda"
    default_kv_dtype = DType.I16
    cache_config = CacheConfig(alignment=16)  # tokens of a panel of keys
    stages = 1
    launches_ahead = True

    def __init__(
        self, options: BackendOptions, gpu: GPU, host: Backend, users: set[int] | None = None, spared: int = 0
    ) -> None:
        """Create the backend. Raises UnsupportedError for plain attention.

        host  the backend that computes values which are only needed on the host
        users  the backends on this GPU; the last one closes it
        spared  bytes of the GPU that count as unavailable
        """
        if not options.flash_attention:
            raise UnsupportedError(
                "the cuda backend has no plain form of attention: leave flash attention on, or load the "
                "model with the cpu backend"
            )
        self._options, self._gpu, self._host = options, gpu, host
        self._spared = spared
        self._users = set() if users is None else users
        self._users.add(id(self))
        self.rule = f"native {_native.rule_version()} cuda {_RULE}"
        self._weights = Region()
        self._vectors: list[tuple[TensorInfo, Vector]] = []
        self._matrices: list[_Source] = []
        self._weight_bytes = 0
        self._storages: list[KVStorage] = []
        self._cells: list[CUDACells] = []
        self._plans: list[CUDAPlan] = []
        self._workspace = Workspace(gpu)
        self._adapters: list[CUDAAdapterSlots] = []
        self._files: dict[Path, _File] = {}

    def devices(self) -> Sequence[Device]:
        device = self._gpu.device
        return [replace(device, available_bytes=max(0, device.available_bytes - self._spared))]

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        known = _native.matrix_types()
        for weight, info in weights:
            if len(info.shape) == 1 or weight.plain:
                vector = Vector(self._weights, self._weight_bytes)
                self._weight_bytes += aligned(4 * math.prod(info.shape), _ALIGNMENT)
                self._vectors.append((info, vector))
                weight.handle = vector
            elif len(info.shape) in (2, 3) and (type := laid_out_type(info.type)) in known:
                rows, columns = info.shape[-2:]
                handles = []
                for index in range(math.prod(info.shape[:-2])):
                    matrix = Matrix(int(type), rows, columns, self._weights, self._weight_bytes)
                    self._weight_bytes += aligned(_native.matrix_bytes(int(type), rows, columns), _ALIGNMENT)
                    self._matrices.append((info, index, matrix))
                    handles.append(matrix)
                weight.handle = handles[0] if len(info.shape) == 2 else handles
            else:
                raise UnsupportedError(
                    f"tensor {info.name}: no kernels for {info.type.name} of shape {info.shape}"
                )

    def load(self, progress: ProgressCallback) -> None:
        (device,) = self.devices()
        needed = self.memory().on(device.name)
        if needed.total > device.available_bytes:
            raise OutOfMemoryError(
                f"weights, caches and plans need {needed.total / 1e9:.2f} GB, but "
                f"{device.available_bytes / 1e9:.2f} GB of {device.name} are available; use a smaller "
                "context, fewer parallel sequences or a smaller model"
            )
        if self._weights.address == 0 and self._weight_bytes:
            self._weights.address = self._gpu.allocate(self._weight_bytes)
            self._load_vectors()
            self._load_matrices(progress)
        for storage in self._storages:
            storage.take()
        for plan in self._plans:
            plan.take()
        self._gpu.expect(program for plan in self._plans for program in plan.programs())
        self._gpu.wait()
        progress(1.0)

    def _load_vectors(self) -> None:
        uploading = []
        for info, vector in self._vectors:
            values = dequantize(info.data, info.type, info.shape).ravel()
            staged = self._gpu.staging(4 * values.size)
            staged[:] = np.ascontiguousarray(values, np.float32).view(np.uint8)
            self._gpu.upload(vector.address, staged)
            uploading.append(staged)
        self._gpu.wait_uploads()

    def _load_matrices(self, progress: ProgressCallback) -> None:
        """Lay out groups of matrices on the host and copy them to the device."""
        total = sum(_size(matrix) for _, _, matrix in self._matrices)
        done = size = 0
        group: list[_Source] = []
        for number, each in enumerate(self._matrices):
            group.append(each)
            size += _size(each[2])
            if size < _GROUP and number + 1 < len(self._matrices):
                continue
            for matrix, packed in self._laid_out(group):
                self._gpu.upload(matrix.address, packed)
            self._gpu.wait_uploads()
            done += size
            progress(done / total)
            group, size = [], 0

    def _laid_out(self, group: Sequence[_Source]) -> Iterator[tuple[Matrix, npt.NDArray[np.uint8]]]:
        """Yield matrices with their content in panels. Raises ModelError for files that cannot be read."""
        memory = _native.Weights(sum(_size(matrix) for _, _, matrix in group))
        offset = 0
        targets = []
        for info, index, matrix in group:
            is_interleaved = laid_out_type(info.type) is not info.type
            target = memory.matrix(
                offset, matrix.type, matrix.rows, matrix.columns, info.strides[-1], is_interleaved
            )
            place = info.offset + (index * info.strides[0] if len(info.shape) > 2 else 0)
            target.take_from(self._file(info).native, place)
            targets.append(target)
            offset += _size(matrix)
        try:
            _native.lay_out(_native.ThreadPool(usable_processors()), _native.isa_names()[-1], targets)
        except RuntimeError as error:
            raise unreadable(group[0][0].path, str(error)) from error
        packed = memory.vector(0, offset // 4).view(np.uint8)
        offset = 0
        for _, _, matrix in group:
            yield matrix, packed[offset : offset + _size(matrix)]
            offset += _size(matrix)

    def put_experts(self, contents: Sequence[tuple[Weight, int, TensorInfo]]) -> None:
        """Replace matrices in stacks, and vectors that belong to them; see `HasExpertSlots`."""
        matrices: list[_Source] = []
        vectors: list[tuple[int, npt.NDArray[np.float32]]] = []
        for weight, number, info in contents:
            if isinstance(weight.handle, list):
                matrices.append((info, 0, weight.handle[number]))
            else:
                assert isinstance(weight.handle, Vector)
                values = self._file(info).vector(info)
                vectors.append((weight.handle.address + number * values.nbytes, values))
        read = list(self._laid_out(matrices))
        for address, values in vectors:
            self._gpu.replace(address, values)
        for matrix, packed in read:
            self._gpu.replace(matrix.address, packed)

    def _file(self, info: TensorInfo) -> _File:
        if info.path not in self._files:
            self._files[info.path] = _File(info.path)
        return self._files[info.path]

    def wait_loaded(self) -> None:
        """Return at once: `load` leaves nothing for later."""

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        storage = KVStorage(self._gpu, role, cells, heads, size, dtype)
        self._storages.append(storage)
        return KVBuffer(role, cells, heads, size, dtype, storage)

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        return {self._gpu.device.name: num_bytes(role, cells, heads, size, dtype)}

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> CUDACells:
        self._cells.append(CUDACells(self._gpu, [buffer.handle for buffer in buffers]))
        return self._cells[-1]

    def compile(self, graph: Graph) -> CUDAPlan:
        plan = CUDAPlan(graph, self._gpu, self._host, self._workspace)
        self._plans.append(plan)
        return plan

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        handle = CUDAAdapterSlots(self._gpu, slots, matrices)
        self._adapters.append(handle)
        return AdapterTable(slots, matrices, max_width, handle)

    def sibling(self) -> CUDABackend:
        return CUDABackend(self._options, self._gpu, self._host.sibling(), self._users, self._spared)

    def memory(self) -> Memory:
        held = DeviceMemory(
            self._gpu.device.name,
            self._weight_bytes,
            sum(storage.bytes for storage in self._storages),
            self._workspace.bytes
            + sum(plan.bytes + plan.recorded_bytes for plan in self._plans)
            + sum(slots.table_bytes for slots in self._adapters),
            is_gpu=True,
        )
        return Memory((held,))

    def close(self) -> None:
        for cells in self._cells:
            cells.release()
        for storage in self._storages:
            storage.release()
        for plan in self._plans:
            plan.release()
        self._workspace.release()
        for slots in self._adapters:
            slots.release()
        if self._weights.address:
            self._gpu.free(self._weights.address)
            self._weights.address = 0
        self._storages, self._plans, self._vectors, self._matrices = [], [], [], []
        self._adapters, self._cells = [], []
        self._weight_bytes = 0
        for file in self._files.values():
            file.close()
        self._files = {}
        self._host.close()
        if id(self) in self._users:
            self._users.remove(id(self))
            if not self._users:
                self._gpu.close()


def _size(matrix: Matrix) -> int:
    return aligned(_native.matrix_bytes(matrix.type, matrix.rows, matrix.columns), _ALIGNMENT)
