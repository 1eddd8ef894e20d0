"""Layers that keep a state for each sequence instead of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Constant, Derived, Kernel, Lowering, Made, Sizes
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.graph import KVBuffer, Tensor, width
from chaski.ml.recurrent_ops import CHUNK

__all__ = ["chunked_conv", "gated_delta", "generalized_delta", "pooling", "selective_scan", "short_conv"]

_PROGRAM = Program("recurrent")
_COLUMNS = 64  # per thread block
_SLAB_BYTES = 4 * (2 * CHUNK * CHUNK + 3 * CHUNK + CHUNK * _COLUMNS)


def short_conv(lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer) -> None:
    _check_states(lowering, node, segments, states)
    _convolve(lowering, node, x, segments, states)


def selective_scan(
    lowering: Lowering,
    node: Tensor,
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    segments: Tensor,
    states: KVBuffer,
) -> None:
    _check_states(lowering, node, segments, states)
    a = np.ascontiguousarray(node.attributes["a"].T)
    arguments = (
        *(x, dt, b, c, segments, lowering.count(segments), Constant(a), KVStorage.of(states)),
        lowering.new(node),
    )
    _scan(lowering, node, segments, (states.heads, states.size, 1), arguments)


def generalized_delta(
    lowering: Lowering,
    node: Tensor,
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor,
    states: KVBuffer,
    *correction: Tensor,
) -> None:
    _check_states(lowering, node, segments, states)
    key_size, value_size = k.shape[2], v.shape[2]
    assert isinstance(key_size, int)
    arguments = (
        *(r, w, k, v, segments, lowering.count(segments), KVStorage.of(states)),
        *(*(correction or (None, None)), key_size, value_size, lowering.new(node)),
    )
    _scan(lowering, node, segments, (key_size, states.size // key_size, states.heads), arguments)


def _scan(
    lowering: Lowering, node: Tensor, segments: Tensor, state: tuple[int, int, int], arguments: Sequence[Any]
) -> None:
    """Add a step with a thread for each column of each head. `state`: rows, columns, heads."""
    rows, columns, heads = state
    dim, threads = lowering.dim(segments), _COLUMNS
    while 4 * rows * threads > lowering.shared_memory:
        threads //= 2

    def choose(sizes: Sizes) -> Kernel:
        blocks, count = -(-columns // threads), sizes[dim]
        grid = (blocks, count, 1) if node.op == "selective_scan" else (blocks, heads, count)
        return Kernel(Program("scans"), node.op, grid, threads, 4 * rows * threads)

    lowering.step(choose, *arguments)


def _check_states(lowering: Lowering, node: Tensor, segments: Tensor, states: KVBuffer) -> None:
    def is_fitting(given: npt.NDArray[np.int32]) -> bool:
        _, _, first, source, target = given.T
        is_first = (first == given[:, 0]) | (first == np.concatenate([[-1], first[:-1]]))
        is_row = (source >= 0) & (source < states.cells) & (target > 0) & (target < states.cells)
        return bool(np.all(is_first & is_row))

    _check(lowering, node, segments, is_fitting)


def chunked_conv(
    lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer, rows: KVBuffer
) -> None:
    _check_chunks(lowering, node, segments, rows, states)
    _convolve(lowering, node, x, segments, states, rows)


def _convolve(lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, *kept: KVBuffer) -> None:
    """Compute all tokens. Then overwrite the stored inputs before them, which nothing reads any more."""
    filter = np.ascontiguousarray(node.attributes["filter"].T, np.float32)
    arguments = (
        *(x, lowering.count(node), segments, lowering.count(segments), Constant(filter)),
        *(*(KVStorage.of(buffer) for buffer in kept), lowering.new(node)),
    )
    keep = "keep_inputs" if node.op == "short_conv" else "keep_chunked_inputs"
    lowering.for_each("recurrent", node.op, node, width(node), *arguments)
    lowering.for_each("recurrent", keep, segments, width(node), *arguments)


def pooling(
    lowering: Lowering,
    node: Tensor,
    values: Tensor,
    scores: Tensor,
    segments: Tensor,
    states: KVBuffer,
    rows: KVBuffer,
) -> None:
    """Divide the channels and the tokens of each segment between threads. Then keep the newest inputs."""
    _check_chunks(lowering, node, segments, rows, states)
    bias, dim, tokens = node.attributes["bias"], lowering.dim(segments), lowering.dim(node)
    ratio = len(bias)
    stretch = max(ratio, CHUNK)

    def choose(sizes: Sizes) -> Kernel:
        # Tokens of the open chunk, and an incomplete stretch at each end.
        stretches = (sizes[tokens] + CHUNK) // stretch + 2
        grid = (-(-states.size // _COLUMNS), sizes[dim], stretches)
        return Kernel(Program("pooling"), "pooling", grid, _COLUMNS)

    def choose_keep(sizes: Sizes) -> Kernel:
        return Kernel(Program("pooling"), "keep_pooled", (-(-bias.shape[1] // 256), sizes[dim], 1), 256)

    arguments = (
        *(values, scores, segments, lowering.count(segments), Constant(bias)),
        *(ratio, stretch, KVStorage.of(states), KVStorage.of(rows), lowering.new(node)),
    )
    lowering.step(choose, *arguments)
    lowering.step(choose_keep, *arguments)


def gated_delta(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    segments: Tensor,
    states: KVBuffer,
    *rows: KVBuffer,
) -> None:
    """Lower `gated_delta`, and `ssd` with its factors of values."""
    _check_chunks(lowering, node, segments, rows[0], states)
    heads, value_size, key_size = v.shape[1], v.shape[2], k.shape[2]
    assert isinstance(heads, int)
    assert isinstance(value_size, int)
    assert isinstance(key_size, int)
    dim = lowering.dim(segments)
    skip = Constant(node.attributes["d"]) if node.op == "ssd" else None
    shared = _SLAB_BYTES + 4 * CHUNK * (key_size + 1)

    def choose(sizes: Sizes) -> Kernel:
        grid = (-(-value_size // _COLUMNS), heads, sizes[dim])
        return Kernel(_PROGRAM, node.op, grid, _COLUMNS, shared)

    def choose_keep(sizes: Sizes) -> Kernel:
        return Kernel(_PROGRAM, "keep_delta_rows", (1, heads, sizes[dim]), 256)

    arguments = (
        *(q, k, v, log_decay, beta, segments, lowering.count(segments)),
        *(KVStorage.of(buffer) for buffer in (states, *rows)),
        *(value_size, int(node.attributes.get("tiled", False)), skip, lowering.new(node)),
    )
    lowering.step(choose, *arguments)
    lowering.step(choose_keep, *arguments)


def _check_chunks(
    lowering: Lowering, node: Tensor, segments: Tensor, rows: KVBuffer, states: KVBuffer
) -> None:
    def is_fitting(given: npt.NDArray[np.int32]) -> bool:
        begin, end, position, cell, source, target, since = given.T.astype(np.int64)
        last_chunk = (position + end - begin - 1) // CHUNK * CHUNK
        is_cell = (cell >= 0) & (cell < rows.cells) & (source >= 0) & (source < states.cells)
        is_cell &= (target >= 0) & (target < states.cells)
        is_open = (since >= 0) & (since % CHUNK == 0) & (since <= position) & (position - since <= CHUNK)
        passes = last_chunk > since
        is_target = (passes == (target > 0)) & ~(passes & (source == target))
        return bool(np.all(is_cell & is_open & is_target))

    _check(lowering, node, segments, is_fitting)


def _check(
    lowering: Lowering, node: Tensor, segments: Tensor, is_fitting: Callable[[npt.NDArray[np.int32]], bool]
) -> None:
    """Reject batches whose segments do not cover all tokens in order, or that name invalid cells."""
    name, dim = segments.attributes["name"], lowering.dim(segments)
    tokens = lowering.dim(node)
    if ("segments", segments) in lowering.shared_parts:
        return
    lowering.shared_parts["segments", segments] = dim

    def make(inputs: Mapping[str, npt.NDArray[Any]], sizes: Sizes) -> Made:
        given = inputs[name]
        edges = np.concatenate([[0], given[:, 1]])
        follows = np.array_equal(edges[:-1], given[:, 0]) and edges[-1] == sizes[tokens]
        if not (follows and np.all(np.diff(edges) > 0) and is_fitting(given)):
            raise ValueError(f"{name} does not fit the batch: {given.tolist()!r:.200}")
        return [], {}

    lowering.derived.append(Derived((), make))
