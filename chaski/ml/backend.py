"""The interface between models and machines. Every backend implements it.

A backend places the weights of a file, creates key/value storage, and compiles a recorded graph into a plan.
Compiling places every buffer for the largest batch, so the memory needed is known before loading. Loading
allocates all of it or raises an error, and memory does not grow afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from chaski.errors import UnsupportedError
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml.graph import AdapterTable, DType, Graph, KVBuffer, KVRole, Weight
from chaski.ml.plan import Plan
from chaski.ml.trace import PlanTrace

__all__ = [
    "HOST",
    "AdapterSlots",
    "Backend",
    "BackendOptions",
    "ByDevice",
    "CPUOptions",
    "CacheConfig",
    "CellRows",
    "Device",
    "DeviceMemory",
    "GPUOptions",
    "LayerExperts",
    "LoraMatrices",
    "MaskForm",
    "Memory",
    "NodesOptions",
    "Options",
    "Override",
    "ProgressCallback",
    "stored_type",
    "summed",
]

ProgressCallback = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""

HOST = "cpu"
"""The name, on every backend, of the device that uses the memory of this process."""

ByDevice = Mapping[str, int]
"""Bytes on each device, by device name. They are not summed: a device cannot use another device's memory."""


class BackendOptions(Struct, frozen=True):
    """Options that do not depend on a device.

    `flash_attention`: whether attention goes through its history chunk by chunk (the fused form) or computes
    all scores of a row first (the plain form, the definition). Both are exact up to rounding.
    """

    flash_attention: bool = True


class CPUOptions(Struct, frozen=True):
    """Options for every backend that computes on the processor, even if only for some layers.

    `threads`: number of cores that a plan may use; None for every physical core this process may use.
    `isa`: the instruction set of the kernels, for tests and comparisons; `auto` is the fastest here.
    `variants`: `measured` takes the kernel variants that are the fastest on this machine, `first` takes the
    first variant of each kernel, and `random:SEED` takes random ones.
    `trace`: records the runs of all plans.
    `grows`: memory for keys and values is taken when tokens first use it, not when the model is loaded.
    `expert_memory`: the most bytes of memory for the matrices of experts; the others are read from the file
    when tokens choose them. None: all of them if the free memory has room for the model, else what is left.
    """

    threads: int | None = None
    isa: str = "auto"
    variants: str = "first"
    trace: PlanTrace | None = None
    grows: bool = False
    expert_memory: int | None = None


class NodesOptions(Struct, frozen=True):
    """The nodes that compute a model together: processes of `chaski shard`, on this machine or on others.

    `addresses`: the host and port of each node. `split`: `layers` or `rows`. `shares`: each node's share of
    them; None for as much as its speed and memory allow. `key_file`: the file with the key that nodes share.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    split: str = "layers"
    shares: tuple[float, ...] | None = None
    key_file: str | None = None


class Override(Struct, frozen=True):
    """Tensors whose names contain a match of `pattern`, a regular expression, are on `device`."""

    pattern: str
    device: str


class GPUOptions(Struct, frozen=True):
    """Placement of a model on a machine with GPUs. Results are bit-identical for every placement.

    numbers      the GPUs that hold it
    layers       number of trailing layers on them, counting the output as one; the others stay on the
                 processor. None for everything
    overrides    tensors with a device of their own, wherever their layers are; the first match counts
    expert_slots  number of experts of a layer on its GPU as well, if all its experts are on the processor
    shares       each GPU's share of the model; None for as much as its free memory allows
    split        `layers` or, over several GPUs that hold everything, `rows`
    spared       bytes of each GPU that stay free
    """

    numbers: tuple[int, ...] = (0,)
    layers: int | None = None
    overrides: tuple[Override, ...] = ()
    expert_slots: int = 0
    shares: tuple[float, ...] | None = None
    split: str = "layers"
    spared: int = 0

    @property
    def devices(self) -> Sequence[str]:
        """The names of the devices that hold a part of the model: first the processor, if it does."""
        is_on_cpu = self.layers is not None or any(each.device == HOST for each in self.overrides)
        return [*([HOST] if is_on_cpu else ()), *(f"cuda:{number}" for number in self.numbers)]


Options = BackendOptions | CPUOptions | NodesOptions | GPUOptions
"""The options that `open_backend` takes. A kind of device that needs other options adds its class here."""


class MaskForm(Enum):
    """Form of the attention mask: `Mask`, `PagedMask`, or `DenseMask` of an element type."""

    SPANS = "spans"
    PAGED = "paged"
    F32 = "f32"
    F16 = "f16"


class CacheConfig(Struct, frozen=True):
    """The layout of caches that a backend requires or computes fastest with.

    None of chaski's own backends asks for padding, permuted values, pages or a dense mask. These options stay
    because the engine that chaski re-creates has them, and because a backend for another device may need
    them. The reference backend supports all of them, and the cache tests use it for that.

    `padding`: the number of cells is a multiple of it.
    `alignment`: attention is fastest where a token's position and cell are the same modulo it.
    `page`: cells are allocated in whole pages of `page` cells, and a token at position p is in cell p % page
    of its page. A page holds tokens of one sequence, or of several that share all tokens up to its end.
    `permuted_values`: values are stored transposed for each head, cells innermost. `kv_buffer` does that.
    """

    padding: int = 1
    alignment: int = 1
    page: int = 1
    permuted_values: bool = False
    mask: MaskForm = MaskForm.SPANS

    def padded(self, cells: int, sequences: int = 0) -> int:
        """Return `cells` plus room for the pages in which `sequences` begin and end, rounded up."""
        multiple = math.lcm(self.padding, self.page)
        return -(-(cells + 2 * (self.page - 1) * sequences) // multiple) * multiple

    def spaced(self, cells: int) -> int:
        """Return `cells`, rounded up so that the next cell begins a panel and a page."""
        multiple = math.lcm(self.alignment, self.page)
        return -(-cells // multiple) * multiple


class Device(Struct, frozen=True):
    """A processor with its own memory.

    `name` is short and unique on this machine: `HOST`, or for example `cuda:0`. `model` is the product name.
    `features` names the instruction sets of a processor. `variants` names the kernel variants that were
    measured to be the fastest, by the type of weights and the range of token counts.
    """

    name: str
    model: str
    cores: int
    features: tuple[str, ...]
    memory_bytes: int
    available_bytes: int
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class DeviceMemory(Struct, frozen=True):
    """Bytes held on one device: weights, key/value storage, the buffers of plans, and LoRA adapters.

    `shared`: bytes of the weights that other processes had already loaded, so that they took no memory.
    `in_files`: bytes of further weights that do not fit in memory; every batch reads them from their files.
    `fillable`: those of them that `load` takes into memory as far as it has room beside everything else, and
    beside `spare` bytes.
    """

    device: str
    weights: int = 0
    cache: int = 0
    plans: int = 0
    shared: int = 0
    in_files: int = 0
    adapters: int = 0
    is_gpu: bool = False
    fillable: int = 0
    spare: int = 0

    @property
    def total(self) -> int:
        """All bytes on the device."""
        return self.weights + self.cache + self.plans + self.adapters


class LayerExperts(Struct, frozen=True):
    """Counts of a layer whose experts are in several places, in matrices of experts.

    hits        the requested matrices that were in memory
    bytes_read  bytes that were read from the file
    slots       the matrices for which memory has room
    matrices    all matrices of experts of the layer
    gpu_hits    the requested matrices that a GPU computed, in addition to `hits`
    gpu_slots   the matrices for which that GPU has room
    """

    layer: int
    requests: int
    hits: int
    bytes_read: int
    slots: int
    matrices: int
    gpu_hits: int = 0
    gpu_slots: int = 0

    def __add__(self, other: LayerExperts) -> LayerExperts:
        """The sum for two stacks of one layer."""
        return LayerExperts(
            self.layer,
            self.requests + other.requests,
            self.hits + other.hits,
            self.bytes_read + other.bytes_read,
            self.slots + other.slots,
            self.matrices + other.matrices,
            self.gpu_hits + other.gpu_hits,
            self.gpu_slots + other.gpu_slots,
        )


class Memory(Struct, frozen=True):
    """Bytes that a backend holds: on each device that it uses, and in total.

    experts  the layers whose experts are in several places
    """

    devices: tuple[DeviceMemory, ...]
    experts: tuple[LayerExperts, ...] = ()

    @property
    def weights(self) -> int:
        """Bytes of weights on all devices."""
        return sum(held.weights for held in self.devices)

    @property
    def cache(self) -> int:
        """Bytes of key/value storage on all devices."""
        return sum(held.cache for held in self.devices)

    @property
    def plans(self) -> int:
        """Bytes of the buffers of plans on all devices."""
        return sum(held.plans for held in self.devices)

    @property
    def adapters(self) -> int:
        """Bytes of LoRA adapters on all devices."""
        return sum(held.adapters for held in self.devices)

    @property
    def total(self) -> int:
        """All bytes on all devices."""
        return sum(held.total for held in self.devices)

    @property
    def to_take(self) -> int:
        """All bytes on all devices except those that other processes have loaded already."""
        return self.total - sum(held.shared for held in self.devices)

    @property
    def on_gpus(self) -> int:
        """All bytes on the GPUs of this machine and of other nodes."""
        return sum(held.total for held in self.devices if held.is_gpu)

    def on(self, device: str) -> DeviceMemory:
        """The bytes on a device; all zero if the backend has none there."""
        return next((held for held in self.devices if held.device == device), DeviceMemory(device))

    def __add__(self, other: Memory) -> Memory:
        names = dict.fromkeys(held.device for held in (*self.devices, *other.devices))
        pairs = [(self.on(name), other.on(name)) for name in names]
        return Memory(
            tuple(
                DeviceMemory(
                    a.device,
                    a.weights + b.weights,
                    a.cache + b.cache,
                    a.plans + b.plans,
                    a.shared + b.shared,
                    a.in_files + b.in_files,
                    a.adapters + b.adapters,
                    a.is_gpu or b.is_gpu,
                    a.fillable + b.fillable,
                    max(a.spare, b.spare),
                )
                for a, b in pairs
            ),
            self.experts + other.experts,
        )


def summed(parts: Iterable[ByDevice]) -> ByDevice:
    """Return the sum of the parts' bytes for each device."""
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part)
    return found


class LoraMatrices(NamedTuple):
    """The change scale · B (A x) of a matrix: A is (rank, columns), B (rows, rank); floats or Q8_0."""

    a: TensorInfo
    b: TensorInfo
    scale: float


class AdapterSlots(Protocol):
    """The adapters in a table. Each has pairs of matrices, by the number of the matrix that a pair changes.

    A slot may change while no launch computes with it.
    """

    @property
    def ready_bytes(self) -> ByDevice:
        """Bytes that are held in reserve for the next adapter."""

    def num_bytes(self, pairs: Mapping[int, LoraMatrices]) -> ByDevice:
        """Return the bytes that an adapter takes."""

    def put(self, slot: int, pairs: Mapping[int, LoraMatrices]) -> None:
        """Read an adapter into a slot. Raises AdapterError for values that are not finite."""

    def clear(self, slot: int) -> None:
        """Empty a slot and release its memory."""


class CellRows(Protocol):
    """Access to the rows of several buffers in the same cells, as bytes that the host can keep.

    A block has room for `room` cells of each buffer. Its bytes are valid only for this backend and for
    buffers of the same shapes. Bytes that are read from some cells and written to others give bit-identical
    results there. No computation may write to these cells during a copy.
    """

    def num_bytes(self, room: int) -> int:
        """The size of a block with room for `room` cells."""

    def read(
        self, cells: npt.NDArray[np.int32], block: npt.NDArray[np.uint8], first: int, room: int
    ) -> Future[None] | None:
        """Copy `cells` (n,) to the places of a block from `first` on. Other bytes of the block do not change.

        If the copy continues in the background, return a future that is done when the copy is. The copy has
        the content that the cells have now, whatever is computed later.
        """

    def write(
        self, cells: npt.NDArray[np.int32], block: npt.NDArray[np.uint8], first: int, room: int
    ) -> None:
        """Copy the places of a block from `first` on to `cells` (n,)."""


class Backend(Protocol):
    """A place to compute. Opened by `chaski.ml.open_backend`."""

    @property
    def name(self) -> str:
        """The backend's name for `open_backend`."""

    @property
    def rule(self) -> str:
        """A name for everything that determines the bits of the results; it changes when any of that does."""

    @property
    def default_kv_dtype(self) -> DType:
        """The element type of key/value storage unless the user names another."""

    @property
    def cache_config(self) -> CacheConfig:
        """The layout of caches for this backend."""

    @property
    def stages(self) -> int:
        """The number of batches that the backend computes at the same time, each on different devices.

        Up to this many launched batches are between the first device and the last.
        """

    @property
    def launches_ahead(self) -> bool:
        """True if a batch can be launched before the results that it takes its tokens from are computed.

        On other backends such a launch waits for those results (`FromLaunch`).
        """

    def devices(self) -> Sequence[Device]:
        """The devices on which this backend may hold memory, with the memory available there now.

        Every backend can use the host's memory, so a backend that uses little of it need not list the host.
        """

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        """Give every weight its `handle`. This neither reads tensors nor allocates memory."""

    def load(self, progress: ProgressCallback) -> None:
        """Read the tensors that were placed, and allocate all memory that was requested so far.

        Before that, storage and plans are only addresses. A backend may arrange the tensors in their final
        layout later and compute with the file's layout meanwhile. Raises OutOfMemoryError before it allocates
        anything.
        """

    def wait_loaded(self) -> None:
        """Wait until all weights are in their final layout; `load` may return before that.

        Raises ModelError if a file can no longer be read.
        """

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        """Return zeroed storage for a layer of the model.

        `layer` is None for storage outside the layers, such as an encoder's. A backend of several devices
        places the storage on the device with the layer's weights, whose names begin with `blk.LAYER.`.
        Raises UnsupportedError if heads of this size cannot have this type.
        """

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        """Return the bytes that `kv_buffer` would take on each device. Call it after `place`."""

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> CellRows:
        """Return access to the rows of buffers with the same cells."""

    def compile(self, graph: Graph) -> Plan:
        """Compile a graph into a plan with all its memory."""

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        """Make an empty table of LoRA adapters for graphs; its handle has the methods of `AdapterSlots`.

        See `AdapterTable` for the sizes. Raises UnsupportedError if the backend cannot apply adapters.
        """

    def sibling(self) -> Backend:
        """Make a backend on the same threads and devices, for a model that computes in turns with this one.

        It has separate memory. `devices` of both backends reports the memory that both leave free.
        """

    def memory(self) -> Memory:
        """Return the bytes that this backend holds: everything that `load` allocates."""

    def close(self) -> None:
        """Release threads and memory. Plans and buffers must not be used afterwards."""


def stored_type(role: KVRole, size: int, dtype: DType) -> QuantType:
    """Return the format of stored rows of `size` elements. Raises UnsupportedError for partial blocks."""
    type = QuantType[dtype.name]
    block = 2 if dtype is DType.I16 else type.block_size
    if size % block:
        raise UnsupportedError(
            f"{role.value} of type {dtype.value} come in blocks of {block}, and the model's heads "
            f"have {size} elements; use f16, bf16 or f32"
        )
    return type
