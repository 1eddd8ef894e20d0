"""The interface between models and machines, which a backend implements.

A backend places the weights of a file, creates key/value storage, and compiles a recorded graph into a plan.
Compiling places every buffer for the largest batch: then all that is needed is known, and loading takes it,
or refuses to. After it nothing grows.
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
    "LoraMatrices",
    "MaskForm",
    "Memory",
    "NodesOptions",
    "Options",
    "ProgressCallback",
    "stored_type",
    "summed",
]

ProgressCallback = Callable[[float], None]
"""Called with the done share of the work, from 0 to 1."""

HOST = "cpu"
"""The name of the device whose memory is that of this process, on every backend."""

ByDevice = Mapping[str, int]
"""Bytes on each device, by its name. Memory of one device is no use to another: nobody adds them up."""


class BackendOptions(Struct, frozen=True):
    """Options that do not depend on a device.

    `flash_attention`: whether attention goes through its history chunk by chunk (the fused form) or computes
    all scores of a row first (the plain form, the definition). Both are exact up to rounding.
    """

    flash_attention: bool = True


class CPUOptions(Struct, frozen=True):
    """Options of the processor, for every backend that computes on it, be it some layers only.

    `threads`: number of cores that a plan may use; None for every physical core this process may use.
    `isa`: the instruction set of the kernels, for tests and comparisons; `auto` is the fastest here.
    `variants`: `measured` takes the variants of kernels that this machine measures to be the fastest, `first`
    the first of each, `random:SEED` any.
    `trace`: notes the runs of all plans.
    """

    threads: int | None = None
    isa: str = "auto"
    variants: str = "first"
    trace: PlanTrace | None = None


class NodesOptions(Struct, frozen=True):
    """The nodes that compute a model together: processes of `chaski shard`, on this machine or on others.

    `addresses`: the host and the port of each. `split`: `layers` or `rows`. `shares`: how much of these each
    takes; None for what its speed and memory allow. `key_file`: the file with the key of all nodes.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    split: str = "layers"
    shares: tuple[float, ...] | None = None
    key_file: str | None = None


class GPUOptions(Struct, frozen=True):
    """Where a model is on a machine with GPUs. No bit of any result depends on it.

    `numbers`: the GPUs that hold it. `layers`: number of trailing layers on them, counting the output as one;
    the others stay on the processor. None for everything. `shares`: how much of it each GPU takes; None for
    as much as its free memory allows. `split`: `layers` or, over several GPUs that hold everything, `rows`.
    `spared`: bytes of each GPU that stay free.
    """

    numbers: tuple[int, ...] = (0,)
    layers: int | None = None
    shares: tuple[float, ...] | None = None
    split: str = "layers"
    spared: int = 0


Options = BackendOptions | CPUOptions | NodesOptions | GPUOptions
"""The options that `open_backend` takes. A kind of device that needs others adds its class here."""


class MaskForm(Enum):
    """Form of the attention mask: `Mask`, `PagedMask`, or `DenseMask` of an element type."""

    SPANS = "spans"
    PAGED = "paged"
    F32 = "f32"
    F16 = "f16"


class CacheConfig(Struct, frozen=True):
    """The layout of caches that a backend requires or computes fastest with.

    None of chaski's own backends asks for padding, permuted values, pages or a dense mask. They stay because
    the engine that chaski re-creates has them, and because a backend for another device may ask for them. The
    reference backend computes with each of them, and the tests of caches use that.

    `padding`: the number of cells is a multiple of it.
    `alignment`: attention is fastest where a token's position and cell are the same modulo it.
    `page`: cells are given out in whole pages of that many, and a token at position p is in cell p % page of
    one. A page has tokens of one sequence, and of those that share all of its tokens up to a page's end.
    `permuted_values`: values lie transposed for each head, cells innermost. Its `kv_buffer` sees to that.
    """

    padding: int = 1
    alignment: int = 1
    page: int = 1
    permuted_values: bool = False
    mask: MaskForm = MaskForm.SPANS

    def padded(self, cells: int, sequences: int = 0) -> int:
        """Return `cells` plus the cells of pages in which `sequences` begin and end, rounded up."""
        multiple = math.lcm(self.padding, self.page)
        return -(-(cells + 2 * (self.page - 1) * sequences) // multiple) * multiple

    def spaced(self, cells: int) -> int:
        """Return `cells`, rounded up so that the cells after them begin at a panel and a page."""
        multiple = math.lcm(self.alignment, self.page)
        return -(-cells // multiple) * multiple


class Device(Struct, frozen=True):
    """A processor with its own memory.

    `name` is its own on this machine, and short: `HOST`, or the like of `cuda:0`. `model` is the product.
    `features` names the instruction sets of a processor; `variants`, by the type of weights and a range of
    numbers of tokens, the variants of its kernels that were measured to be the fastest.
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

    `shared`: those of the weights that others had there already, so that they took no memory.
    `in_files`: more weights, too large for memory, which every batch reads from their files.
    """

    device: str
    weights: int = 0
    cache: int = 0
    plans: int = 0
    shared: int = 0
    in_files: int = 0
    adapters: int = 0
    is_gpu: bool = False

    @property
    def total(self) -> int:
        """All bytes on the device."""
        return self.weights + self.cache + self.plans + self.adapters


class Memory(Struct, frozen=True):
    """Bytes that a backend holds on each device that it has some on, and in all."""

    devices: tuple[DeviceMemory, ...]

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
        """All bytes on all devices but those that others have there already."""
        return self.total - sum(held.shared for held in self.devices)

    @property
    def on_gpus(self) -> int:
        """All bytes on GPUs, whether of this machine or of other nodes."""
        return sum(held.total for held in self.devices if held.is_gpu)

    def on(self, device: str) -> DeviceMemory:
        """The bytes on a device, of which there may be none."""
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
                )
                for a, b in pairs
            )
        )


def summed(parts: Iterable[ByDevice]) -> ByDevice:
    """Return the bytes of all parts together, on each device."""
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
    """The adapters in a table: the pairs of each, by the numbers of the matrices that they change.

    A slot may change while no launch computes with it.
    """

    @property
    def ready_bytes(self) -> ByDevice:
        """Bytes that are kept ready for the next adapter."""

    def num_bytes(self, pairs: Mapping[int, LoraMatrices]) -> ByDevice:
        """Return the bytes that an adapter takes."""

    def put(self, slot: int, pairs: Mapping[int, LoraMatrices]) -> None:
        """Read an adapter into a slot. Raises AdapterError for values that are not finite."""

    def clear(self, slot: int) -> None:
        """Empty a slot, and release its memory."""


class CellRows(Protocol):
    """The rows of several buffers in the same cells, as bytes that the host can keep.

    A block has room for that many cells of each buffer. Its bytes have a meaning only for this backend, and
    buffers of the same shapes: bytes read from cells and written to others give the same results there, bit
    by bit. Nothing may be computed meanwhile that writes to these cells.
    """

    def num_bytes(self, room: int) -> int:
        """The size of a block with room for that many cells."""

    def read(
        self, cells: npt.NDArray[np.int32], block: npt.NDArray[np.uint8], first: int, room: int
    ) -> Future[None] | None:
        """Copy `cells` (n,) to the places of a block from `first` on. Other bytes of the block stay.

        If the copy continues in the background, a future is returned, which is done when the copy is. It
        copies the present content of the cells, whatever is computed later.
        """

    def write(
        self, cells: npt.NDArray[np.int32], block: npt.NDArray[np.uint8], first: int, room: int
    ) -> None:
        """Copy the places of a block from `first` on to `cells` (n,)."""


class Backend(Protocol):
    """A place to compute. Opened by `chaski.ml.open_backend`."""

    @property
    def name(self) -> str:
        """The name that `open_backend` knows it by."""

    @property
    def rule(self) -> str:
        """The name of all that decides the bits of its results: it changes whenever any of them does."""

    @property
    def default_kv_dtype(self) -> DType:
        """The element type of key/value storage when the user names none."""

    @property
    def cache_config(self) -> CacheConfig:
        """The layout of caches for this backend."""

    @property
    def stages(self) -> int:
        """The number of batches that it computes at the same time, each on other devices than the others.

        This many of the launched batches are on their way from the first device to the last.
        """

    @property
    def launches_ahead(self) -> bool:
        """True if a batch is launched at once whose tokens are results of one that is still computed.

        Elsewhere that waits for those results (`FromLaunch`).
        """

    def devices(self) -> Sequence[Device]:
        """The devices that this backend may hold memory of, with the memory available there now.

        Memory of the host is available to everybody: a backend that has only some of it need not list it.
        """

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        """Give every weight its `handle`. Nothing is read yet, and no memory taken."""

    def load(self, progress: ProgressCallback) -> None:
        """Read the tensors that were placed, and take all memory that was asked for so far.

        Before it storage and plans are only addresses. A backend may leave it for later where the tensors are
        laid out, and compute with them as they are meanwhile. Raises OutOfMemoryError before it takes any.
        """

    def wait_loaded(self) -> None:
        """Wait until all weights are in their final layout, which `load` may leave for later.

        Raises ModelError where a file cannot be read any more.
        """

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        """Zeroed storage of a layer of the model; None for parts outside of layers, such as an encoder's.

        A backend of several devices places it where the weights of that layer are: `blk.LAYER.` in their
        names. Raises UnsupportedError where heads of that size cannot have that type.
        """

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        """The bytes that such storage takes, where it would be. Asked after `place`."""

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> CellRows:
        """Return access to the rows of buffers with the same cells."""

    def compile(self, graph: Graph) -> Plan:
        """Turn a graph into a plan with all its memory."""

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        """Make an empty table of LoRA adapters for graphs; its handle has the methods of `AdapterSlots`.

        See `AdapterTable` for the sizes. Raises UnsupportedError where the backend cannot apply adapters.
        """

    def sibling(self) -> Backend:
        """Make a backend on the same threads and devices, for a model that computes in turns with this one.

        It has its own memory, and `devices` of both show what both leave free.
        """

    def memory(self) -> Memory:
        """Return the memory that this backend holds now, in bytes: all that `load` takes."""

    def close(self) -> None:
        """Release threads and memory. Plans and buffers must not be used any more."""


def stored_type(role: KVRole, size: int, dtype: DType) -> QuantType:
    """The format that rows of `size` elements are stored in. Raises UnsupportedError for parts of a block."""
    type = QuantType[dtype.name]
    block = 2 if dtype is DType.I16 else type.block_size
    if size % block:
        raise UnsupportedError(
            f"{role.value} of type {dtype.value} come in blocks of {block}, and the model's heads "
            f"have {size} elements; use f16, bf16 or f32"
        )
    return type
