"""The native core of chaski: kernels, and the plans that run them."""

from collections.abc import Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray

def multiply_add_rate(pool: ThreadPool, isa: str, type: str) -> float | None:
    """
    Multiply-adds per second of all threads, at most: int8, bf16 or fp32; None if there are none.
    """

def read_bandwidth(pool: ThreadPool, isa: str, bytes: int) -> float:
    """Bytes per second that all threads read from that much memory, at most."""

def spread_memory(nodes: Sequence[int]) -> None:
    """
    Lets the pages of large memory that is taken from now on lie on these memory nodes in turns.
    """

class PackedMatrix:
    """A weight matrix in the layout of the kernels, with its memory."""

    @property
    def rows(self) -> int: ...
    @property
    def k(self) -> int: ...
    def panels(self) -> bytes:
        """A copy of the packed bytes."""

def pack_matrix(
    type: int,
    data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rows: int,
    k: int,
    isa: str = "auto",
) -> PackedMatrix:
    """
    Packs rows of a GGUF tensor: type by its number in the format, data as in the file.
    """

def matmul(
    matrix: PackedMatrix,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    isa: str = "auto",
    bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)]
    | None = None,
    residual: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ]
    | None = None,
    in_super_blocks: bool = False,
    variant: int = 0,
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """
    x (n, k) times the matrix, transposed: (n, rows), plus bias (rows), plus residual (n, rows). In super-blocks: x is rounded as for Q2_K to Q6_K, whatever the matrix's type. Variant: one of variant_names by its number; its results are the same bits.
    """

def variant_names(type: int, tokens: int, isa: str = "auto") -> list[str]:
    """
    The variants of products of quantized weights of a type, by its number, with so many tokens.
    """

def unpack_rows(
    matrix: PackedMatrix,
    rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    isa: str = "auto",
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """Dequantized rows: (len(rows), k)."""

def isa_names() -> list[str]:
    """Instruction sets of this build that this machine has, slowest first."""

def exponentials(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    highest: float,
) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """e to x - highest, of numbers (n,) up to that."""

def exponential_sum(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    highest: float,
) -> float:
    """The sum of these, in double precision."""

def logarithm(x: float) -> float:
    """The natural logarithm of a normal number above 0."""

def logarithms(
    x: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
    """The natural logarithms of such numbers (n,)."""

def use_float_mode(mode: int | None = None) -> int:
    """
    Sets how this thread rounds; None: as usual, to nearest with denormal numbers -> the mode before.
    """

def codebook(type: int) -> Annotated[NDArray[numpy.uint16], dict(shape=(None,), writable=False)]:
    """
    The entries of a type's codebook, as words of levels: 8 of 2 bits (IQ1, IQ2) or 4 of 3 bits (IQ3).
    """

def encode_blocks(
    type: int,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    limit: float,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    isa: str = "auto",
) -> float:
    """
    Writes floats to `out` as F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0, and returns their largest magnitude. If that is above the limit or not a number, the bytes mean nothing.
    """

def fit_affine(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    top: float,
    intervals: Annotated[
        NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    weights: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ]
    | None = None,
    isa: str = "auto",
) -> tuple[
    Annotated[NDArray[numpy.float32], dict(shape=(None,))],
    Annotated[NDArray[numpy.float32], dict(shape=(None,))],
]:
    """
    Scales and minimums of sub-blocks (n, 8, 16 or 32): the best grid of levels 0 to top that starts with
    one of these numbers of intervals over the range.
    """

def fit_symmetric(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    low: float,
    high: float,
    places: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    weights: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ]
    | None = None,
    isa: str = "auto",
) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """
    Scales of sub-blocks (n, 8, 16 or 32) for the levels low to high; places: the levels of the largest
    magnitude that are tried.
    """

def fit_listed(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    places: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    weights: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ]
    | None = None,
    isa: str = "auto",
) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """
    Scales of sub-blocks (n, 8, 16 or 32) whose levels are sixteen ascending values.
    """

def fit_codebook(
    type: int,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    weights: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    isa: str = "auto",
) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """Scales of sub-blocks (n, 16 or 32) for a type with a codebook."""

def element_weights(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    importance: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ]
    | None = None,
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """Shares of elements in the error of blocks (n, 32, 64, 128 or 256), by size and importance."""

def encode_lines(
    type: int,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    weights: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    intervals: Annotated[
        NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    places: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", device="cpu")],
    isa: str = "auto",
) -> None:
    """
    Writes blocks (n, 256) to `out` (n, bytes) as Q2_K, Q4_K or Q5_K. intervals: of `fit_affine`, for
    lines of sub-blocks. places: of `fit_symmetric`, for scales and minimums of lines.
    """

def choose_entries(
    type: int,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    weights: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    scales: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    choices: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    entries: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu")],
    signs: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", device="cpu")],
    sums: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    isa: str = "auto",
) -> None:
    """
    Writes the number of the best of the scales (tries, sub-blocks), the best entries of a codebook for it,
    the signs of each 8 elements (IQ1: 1 for a negative delta), and sums of weight * level * level and of
    weight * level * x.
    """

def rounded_rows(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    in_super_blocks: bool,
    isa: str = "auto",
) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    The bytes of rows (n, k) as products with quantized matrices round them. Rows that would not be rounded again as they were are floats there.
    """

def unrounded_rows(
    data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    n: int,
    k: int,
    in_super_blocks: bool,
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """
    Rows (n, k) that are rounded as those whose bytes these are. Raises ValueError for other bytes.
    """

class KVStorage:
    @property
    def bytes(self) -> int: ...
    def touch(self) -> None: ...
    def read(
        self, isa: str, cell: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C")]
    ) -> None: ...

def kv_storage(cells: int, heads: int, size: int, type: int, in_panels: bool) -> KVStorage: ...
def rule_version() -> int: ...
def block_bytes(storages: Sequence[KVStorage], room: int) -> int: ...
def copy_block(
    pool: ThreadPool,
    isa: str,
    storages: Sequence[KVStorage],
    cells: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", writable=False)],
    block: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C")],
    places: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", writable=False)],
    room: int,
    is_write: bool,
) -> None: ...
def kv_storage_bytes(cells: int, heads: int, size: int, type: int, in_panels: bool) -> int: ...

class WeightMatrix:
    @property
    def type(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    def first_rows(self, rows: int) -> WeightMatrix: ...
    def take_from(self, file: WeightFile, offset: int) -> None: ...
    def release(self) -> None: ...
    def set_laid_out(self) -> None: ...

class WeightFile:
    def __init__(self, descriptor: int) -> None: ...
    @property
    def error(self) -> int: ...
    @property
    def identity(self) -> list[int]: ...
    def read_only_requested(self) -> None: ...
    def resident_share(self, offset: int, bytes: int) -> float: ...
    def read_ahead(self, offset: int, bytes: int) -> None:
        """
        Has the system read these bytes into its memory, and does not wait for that.
        """

class WeightStream:
    def __init__(self, threads: int) -> None: ...
    @property
    def bytes(self) -> int: ...
    def start(self, bytes: int, matrices: Sequence[WeightMatrix], readers: int) -> None:
        """Reserves about that much memory for any of these matrices, and starts to read."""

    def set(self, matrices: Sequence[WeightMatrix]) -> None:
        """Sets the matrices that every pass reads, in its order."""

    def stop(self) -> None: ...

class DirectFile:
    def __init__(self, descriptor: int) -> None: ...

class ExpertStack:
    @property
    def type(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """
        Its layer, the matrices that were requested, those in memory, bytes read, and slots.
        """

    def __len__(self) -> int: ...

class ExpertStore:
    def add(
        self,
        layer: int,
        type: int,
        rows: int,
        columns: int,
        stride: int,
        is_interleaved: bool,
        offsets: Sequence[int],
        file: DirectFile,
    ) -> ExpertStack: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def least_bytes(self) -> int: ...
    @property
    def filled_bytes(self) -> int:
        """
        The bytes of memory that contain experts.
        """

    def start(self, bytes: int, readers: int, patience: int) -> None:
        """A batch tries failed reads again for up to `patience` milliseconds."""

    def resize(self, bytes: int) -> None: ...
    def stop(self) -> None: ...
    def take_missing(self) -> tuple[int, int, list[tuple[int, int]]] | None:
        """
        The number of a stack that the last batch could not read, the error, and each row that lacked an expert, with the number of its dimension; None if nothing was missing.
        """

def expert_store(isa: str) -> ExpertStore: ...

class Weights:
    @overload
    def __init__(self, bytes: int) -> None: ...
    @overload
    def __init__(self, bytes: int, descriptor: int) -> None: ...
    def matrix(
        self, offset: int, type: int, rows: int, columns: int, stride: int, is_interleaved: bool
    ) -> WeightMatrix: ...
    def vector(self, offset: int, size: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

def can_share_huge_pages() -> bool: ...
def matrix_bytes(type: int, rows: int, columns: int) -> int: ...
def is_quantized(type: int) -> bool: ...
def wants_super_blocks(type: int) -> bool:
    """
    Whether products with that type want activations in super-blocks of 256.
    """

def matrix_types() -> list[int]: ...
def lay_out(
    pool: ThreadPool, isa: str, matrices: Sequence[WeightMatrix], shared: int | None = None
) -> None: ...
def steady_nanoseconds() -> int:
    """The clock of pieces."""

class ThreadPool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def wait(self) -> None:
        """Waits for what was launched last."""

class VariantPicks:
    """Which variant of a kernel each product takes."""

    def __init__(self, isa: str, seed: int | None = None) -> None: ...
    def pick(self, type: str, token_class: str, variant: str) -> bool:
        """Picks one by name; False if there is none of that name."""

    def settle(self) -> None:
        """Ends all measuring."""

    def picks(self) -> list[tuple[str, str, str]]:
        """The picks so far: type, class of tokens, variant."""

    @property
    def measured(self) -> int:
        """How many choices were measured to the end."""

def quantized_bytes(count: int) -> int:
    """Return the bytes of activations as int8 with their scales and sums."""

class Plan:
    def __init__(
        self,
        pool: ThreadPool,
        isa: str,
        picks: VariantPicks,
        arena_bytes: int,
        dims: Sequence[str],
        maxima: Sequence[int],
        in_super_blocks: bool = False,
        cut_for: int | None = None,
    ) -> None: ...
    def ints(self, arg0: int, arg1: int, /) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...
    def floats(
        self, arg0: int, arg1: int, arg2: int, /
    ) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...
    def check_indices(self, name: str, dim: int, indices: int, limit: int, limit_dim: int | None) -> None: ...
    def rope_table(
        self,
        dim: int,
        positions: int,
        width: int,
        frequencies: Sequence[float],
        axes: Sequence[int],
        magnitude: float,
        block: int,
        table: int,
    ) -> None: ...
    def rope(
        self, dim: int, heads: int, size: int, pairs: int, neox: bool, x: int, table: int, y: int
    ) -> None: ...
    def hadamard(self, dim: int, width: int, block: int, x: int, y: int) -> None: ...
    def store(self, dim: int, x: int, cells: int, target: KVStorage) -> None: ...
    def rotate_cells(
        self, dim: int, cells: int, pairs: int, neox: bool, block: int, table: int, target: KVStorage
    ) -> None: ...
    def tiles(self, tokens: int, history: int, spans: int, group: int, is_plain: bool) -> int: ...
    def attention(
        self,
        dim: int,
        history: int,
        heads: int,
        value_size: int,
        scale: float,
        cap: float,
        is_plain: bool,
        q: int,
        keys: KVStorage,
        values: KVStorage,
        cells: int,
        spans: int,
        tiles: int,
        weights: Weights | None,
        sinks: int | None,
        distances: Sequence[float],
        positions: int | None,
        parts: int | None,
        y: int,
    ) -> None: ...
    def chosen_tiles(
        self, tokens: int, spans: int, count: int, block: int, local: int, group: int, is_plain: bool
    ) -> int: ...
    def choose_cells(
        self,
        dim: int,
        history: int,
        heads: int,
        scale: float,
        count: int,
        block: int,
        local: int,
        q: int,
        weights: int | None,
        keys: KVStorage,
        cells: int,
        spans: int,
        parts: int | None,
        y: int,
    ) -> None: ...
    def entry_attention(
        self,
        dim: int,
        history: int,
        entries: int,
        heads: int,
        scale: float,
        window: int,
        count: int,
        block: int,
        q: int,
        keys: KVStorage,
        cells: int,
        spans: int,
        entry_keys: KVStorage,
        entry_cells: int,
        entry_spans: int,
        weights: Weights | None,
        sinks: int | None,
        y: int,
    ) -> None: ...
    def chosen_attention(
        self,
        dim: int,
        longest: int,
        heads: int,
        value_size: int,
        scale: float,
        cap: float,
        is_plain: bool,
        q: int,
        keys: KVStorage,
        values: KVStorage,
        chosen: int,
        count: int,
        tiles: int,
        weights: Weights | None,
        sinks: int | None,
        parts: int | None,
        y: int,
    ) -> None: ...
    def rms_norm(
        self,
        dim: int,
        weights: Weights | None,
        weight: int | None,
        heads: int,
        size: int,
        eps: float,
        x: int,
        y: int,
        quantized: int | None,
        k: int,
    ) -> None: ...
    def layer_norm(
        self,
        dim: int,
        weights: Weights | None,
        weight: int,
        bias: int | None,
        heads: int,
        size: int,
        eps: float,
        x: int,
        y: int,
        quantized: int | None,
        k: int,
    ) -> None: ...
    def elementwise(
        self,
        op: str,
        dim: int,
        width: int,
        operands: Sequence[int],
        parameters: Sequence[float],
        y: int,
        quantized: int | None,
        k: int,
    ) -> None: ...
    def by_vector(
        self, op: str, dim: int, width: int, weights: Weights | None, vector: int, x: int, y: int
    ) -> None: ...
    def scale_rows(self, dim: int, parts: int, width: int, x: int, factors: int, y: int) -> None: ...
    def scale_heads(self, dim: int, size: int, factors: Sequence[float], x: int, y: int) -> None: ...
    def head_sums(self, dim: int, heads: int, size: int, x: int, y: int) -> None: ...
    def mix_streams(
        self, dim: int, streams: int, outputs: int, size: int, x: int, weights: int, y: int
    ) -> None: ...
    def sinkhorn(self, dim: int, size: int, iterations: int, eps: float, x: int, y: int) -> None: ...
    def rms(self, dim: int, width: int, x: int, y: int) -> None: ...
    def gaussian_top_k(self, dim: int, width: int, multiplier: float, x: int, y: int) -> None: ...
    def position_scale(
        self, dim: int, positions: int, length: int, beta: float, offset: int, y: int
    ) -> None: ...
    def group_lora_rows(
        self, dim: int, uses_dim: int, lists: int, uses: int, table: LoraTable, max_width: int
    ) -> None: ...
    def lora_down(
        self, dim: int, table: LoraTable, matrix: int, rows: int, columns: int, max_width: int, x: int, t: int
    ) -> None: ...
    def lora_up(
        self,
        dim: int,
        table: LoraTable,
        matrix: int,
        rows: int,
        width: int,
        max_width: int,
        t: int,
        residual: int | None,
        y: int,
    ) -> None: ...
    def router(
        self,
        dim: int,
        experts: int,
        count: int,
        gating: int,
        normalized: bool,
        scale: float,
        groups: int,
        used_groups: int,
        best_of_group: int,
        table: Sequence[int],
        weights: Weights | None,
        bias: int | None,
        tokens: int | None,
        x: int,
        y: int,
    ) -> None: ...
    def scale_experts(
        self, dim: int, experts: int, count: int, weights: Weights | None, scales: int, x: int, y: int
    ) -> None: ...
    def scale_by_expert(
        self,
        dim: int,
        experts: int,
        count: int,
        width: int,
        weights: Weights | None,
        scales: int,
        x: int,
        groups: int,
        y: int,
    ) -> None: ...
    def group_by_expert(
        self,
        dim: int,
        experts: int,
        count: int,
        matrices: int,
        places: int | None,
        of_places: int,
        routes: int,
        y: int,
    ) -> None: ...
    def join_experts(
        self,
        dim: int,
        count: int,
        width: int,
        x: int,
        groups: int,
        other: int,
        other_groups: int,
        y: int,
    ) -> None: ...
    def dispatch(
        self, dim: int, count: int, width: int, x: int, routes: int | None, groups: int, y: int
    ) -> None: ...
    def dispatch_quantized(self, dim: int, count: int, width: int, x: int, groups: int, y: int) -> None: ...
    def request_experts(self, dim: int, count: int, stacks: Sequence[ExpertStack], groups: int) -> None: ...
    def expert_matmul(
        self,
        dim: int,
        count: int,
        experts: ExpertStack | Sequence[WeightMatrix],
        weights: Weights | None,
        bias: int | None,
        x: int | None,
        quantized: int | None,
        groups: int,
        y: int,
    ) -> None: ...
    def combine(
        self, dim: int, count: int, width: int, x: int, routes: int | None, groups: int, y: int
    ) -> None: ...
    def head_matmul(
        self, dim: int, heads: Sequence[WeightMatrix], x: int | None, quantized: int | None, y: int
    ) -> None: ...
    def matmul(
        self,
        dim: int,
        weight: WeightMatrix,
        x: int | None,
        quantized: int | None,
        weights: Weights | None,
        bias: int | None,
        residual: int | None,
        y: int,
    ) -> None: ...
    def product(
        self, dim: int, depth: int, width: int, weights: Weights | None, matrix: int, x: int, y: int
    ) -> None: ...
    def quantize(self, dim: int, width: int, k: int, x: int, quantized: int) -> None: ...
    def short_conv(
        self,
        dim: int,
        segments_dim: int,
        x: int,
        filter: Sequence[float],
        segments: int,
        states: KVStorage,
        y: int,
    ) -> None: ...
    def chunked_conv(
        self,
        dim: int,
        segments_dim: int,
        x: int,
        filter: Sequence[float],
        segments: int,
        states: KVStorage,
        rows: KVStorage,
        y: int,
    ) -> None: ...
    def delta_rows(
        self,
        dim: int,
        segments_dim: int,
        k: int,
        log_decay: int,
        segments: int,
        keys: KVStorage,
        log_decays: KVStorage,
        tiled: bool,
        before: bool,
    ) -> None: ...
    def gated_delta(
        self,
        dim: int,
        segments_dim: int,
        q: int,
        k: int,
        v: int,
        log_decay: int,
        beta: int,
        segments: int,
        states: KVStorage,
        keys: KVStorage,
        values: KVStorage,
        log_decays: KVStorage,
        value_size: int,
        tiled: bool,
        skip: Sequence[float],
        y: int,
    ) -> None: ...
    def pooling(
        self,
        dim: int,
        segments_dim: int,
        overlaps: bool,
        values: int,
        scores: int,
        bias: Sequence[float],
        segments: int,
        states: KVStorage,
        rows: KVStorage,
        y: int,
    ) -> None: ...
    def selective_scan(
        self,
        dim: int,
        segments_dim: int,
        x: int,
        dt: int,
        b: int,
        c: int,
        a: Sequence[float],
        segments: int,
        states: KVStorage,
        y: int,
    ) -> None: ...
    def generalized_delta(
        self,
        dim: int,
        segments_dim: int,
        r: int,
        w: int,
        k: int,
        v: int,
        a: int | None,
        b: int | None,
        segments: int,
        states: KVStorage,
        value_size: int,
        y: int,
    ) -> None: ...
    def embedding(self, dim: int, table: WeightMatrix, ids: int, y: int) -> None: ...
    def rows(self, dim: int, source_dim: int, width: int, x: int, indices: int, y: int) -> None: ...
    def scatter(self, dim: int, target_dim: int, width: int, x: int, places: int, y: int) -> None: ...
    def slice(
        self, dim: int, groups: int, source_width: int, first: int, width: int, x: int, y: int
    ) -> None: ...
    def concat_columns(
        self, dim: int, groups: int, width: int, target_width: int, first: int, stride: int, x: int, y: int
    ) -> None: ...
    def space_to_depth(self, dim: int, source_dim: int, width: int, count: int, x: int, y: int) -> None: ...
    def average_rows(self, dim: int, source_dim: int, width: int, count: int, x: int, y: int) -> None: ...
    def token_numbers(self, dim: int, tokens: int, y: int) -> None: ...
    def hash_ngrams(
        self,
        dim: int,
        multipliers: Sequence[int],
        size: int,
        offset: int,
        separator: int,
        width: int,
        tokens: int,
        before: int,
        y: int,
    ) -> None: ...
    def rooted_dots(
        self, dim: int, heads: int, size: int, factor: float, least: float, a: int, b: int, y: int
    ) -> None: ...
    def relative_dots(
        self,
        dim: int,
        table_dim: int,
        heads: int,
        size: int,
        count: int,
        x: int,
        table: int,
        first: int,
        y: int,
    ) -> None: ...
    def lane_maxima(self, dim: int, width: int, x: int, counts: int, maxima: int) -> None: ...
    def top_k(self, dim: int, width: int, max_k: int, x: int, counts: int, maxima: int, y: int) -> None: ...
    def barrier(self) -> None: ...
    def finish(self) -> None: ...
    def touch(self) -> None: ...
    def launch(self, sizes: Sequence[int]) -> None: ...
    def wait(self) -> None: ...
    def read_ahead(self, descriptor: int, most: int) -> int | None:
        """
        Reads weights of the next run into the caches, up to `most` bytes of them -> how many are there for it. None: there is something to read from the descriptor, and so it ended before that.
        """

    def trace(self) -> None:
        """From now on every run notes its pieces."""

    def pieces(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]:
        """
        Those of the last run (n, 7), thread by thread: thread, step, phase, the first item and the one behind the last, the time before and after, in nanoseconds.
        """

    @property
    def num_steps(self) -> int: ...
    @property
    def bytes(self) -> int: ...

def attention_parts_bytes(heads: int, kv_heads: int, value_size: int, history: int, threads: int) -> int: ...
def elementwise_operations() -> dict[str, tuple[int, int]]: ...

class LoraTable:
    """The matrices of adapters in memory, by slot and by matrix."""

    def __init__(self, slots: int, matrices: int) -> None: ...
    def put(
        self,
        slot: int,
        matrix: int,
        rank: int,
        rows: int,
        columns: int,
        scale: float,
        type_a: int,
        type_b: int,
        memory: Weights,
        a: int,
        b: int,
    ) -> None:
        """The caller keeps the memory until the slot is cleared."""

    def clear(self, slot: int) -> None: ...

def packed_lora_bytes(type: int, rows: int, columns: int) -> int: ...
def pack_lora(
    values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    type: int,
    rows: int,
    columns: int,
    memory: Weights,
    offset: int,
) -> bool:
    """
    Copies a matrix into panels; False if some of its values are not finite.
    """

def num_lanes(width: int) -> int: ...
def first_that_is_not_utf8(
    data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> int:
    """
    Index of the first string that is not UTF-8, or the number of all: each lies behind its length.
    """

class PairMerges:
    """
    Merges the characters of words to tokens. A thread of its own builds it; whoever asks before it is there waits.
    """

    def __init__(
        self,
        tokens: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        token_offsets: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        merges: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        merge_offsets: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        unused: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        byte_tokens: Sequence[str],
        takes_whole_words: bool,
        is_byte_level: bool,
    ) -> None: ...
    @property
    def fault(self) -> int | None:
        """The first merge that is not one of tokens, if there is one."""

    def id_of(self, token: str) -> int:
        """The id of a token, or -1."""

    def encode(
        self,
        text: str,
        ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> list[int]:
        """
        The ids of a text that is cut into words; `ends` counts characters up to the end of each.
        """
