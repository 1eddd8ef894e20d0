"""The operations of a graph. Each is a function that checks shapes and records a node.

A NumPy function of the same name in `chaski.ml.reference.ops` defines each operation. Elementwise operations
are declared and defined in `chaski.ml.elementwise`, and products with matrices in `chaski.ml.products`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.ml.cached_ops import (
    DistanceBias,
    attention,
    choose_cells,
    copy_cells,
    entry_attention,
    hadamard,
    rope,
    rope_table,
    rotate_cells,
    short_conv,
    store,
    stored,
)
from chaski.ml.elementwise import (
    clamp,
    clamped_swiglu,
    exp,
    geglu,
    gelu,
    gelu_tanh,
    multiply,
    quick_gelu,
    relu,
    sigmoid,
    silu,
    softcap,
    softplus,
    swiglu,
)
from chaski.ml.graph import Dim, DType, Shape, Tensor, Weight, require
from chaski.ml.products import first_outputs, linear
from chaski.ml.recurrent_ops import (
    chunked_conv,
    gated_delta,
    generalized_delta,
    pooling,
    selective_scan,
    ssd,
)

__all__ = [
    "NUM_CHANCES",
    "DistanceBias",
    "add_vector",
    "attention",
    "average_rows",
    "choose_cells",
    "chunked_conv",
    "clamp",
    "clamped_swiglu",
    "concat",
    "copy_cells",
    "embedding",
    "entry_attention",
    "erf_geglu",
    "exp",
    "first_outputs",
    "gated_delta",
    "gaussian_top_k",
    "geglu",
    "gelu",
    "gelu_tanh",
    "generalized_delta",
    "hadamard",
    "hash_ngrams",
    "head_sums",
    "l2_norm",
    "layer_norm",
    "linear",
    "mix_streams",
    "multiply",
    "multiply_vector",
    "pooling",
    "position_scale",
    "product",
    "quick_gelu",
    "relative_dots",
    "relu",
    "rms",
    "rms_norm",
    "rooted_dots",
    "rope",
    "rope_table",
    "rotate_cells",
    "sample",
    "scale_heads",
    "scale_rows",
    "scatter",
    "selective_scan",
    "short_conv",
    "sigmoid",
    "silu",
    "sinkhorn",
    "slice",
    "softcap",
    "softplus",
    "space_to_depth",
    "squared_relu",
    "ssd",
    "store",
    "stored",
    "swiglu",
    "token_numbers",
    "top_k",
]

NUM_CHANCES = 6
"""Numbers that `sample` reads for each row."""


def embedding(ids: Tensor, table: Weight) -> Tensor:
    """Return the rows of `table` (vocab, d) for `ids` (n,) int32 -> (n, d)."""
    require(len(table.shape) == 2 and len(ids.shape) == 1, "embedding", table.shape, ids.shape)
    return table.scaled(ids.graph.record("embedding", (ids, table), (ids.shape[0], table.shape[1])))


def token_numbers(tokens: Tensor) -> Tensor:
    """Return token + 1 for `tokens` (n,) int32 -> (n, 1), so that 0 means no token. Exact below 2**24."""
    return tokens.graph.record("token_numbers", (tokens,), (tokens.shape[0], 1))


def hash_ngrams(
    tokens: Tensor, before: Tensor, multipliers: Sequence[int], size: int, offset: int, separator: int
) -> Tensor:
    """Return a row of a table for each token and those before it, by a hash -> (n,) int32.

    `before` (n, width) has the `token_numbers` of the tokens before each token, the nearest first. The hash
    is the exclusive or of token · multiplier, modulo `size`, plus `offset`. A token before the last
    `separator`, or before the first token, counts as the separator.
    """
    width = before.shape[1]
    fits = isinstance(width, int) and 1 < len(multipliers) <= width + 1
    require(fits and before.shape[0] == tokens.shape[0], "hash_ngrams", tokens.shape, before.shape)
    return tokens.graph.record(
        "hash_ngrams",
        (tokens, before),
        tokens.shape,
        DType.I32,
        multipliers=tuple(multipliers),
        size=size,
        offset=offset,
        separator=separator,
    )


def rooted_dots(a: Tensor, b: Tensor, factor: float, least: float) -> Tensor:
    """Return sign(s) · sqrt(max(|s|, least)), s = factor · a b of each head (n, heads, size) -> (n, heads).

    The products are added in order.
    """
    require(a.shape == b.shape and len(a.shape) == 3, "rooted_dots", a.shape, b.shape)
    return a.graph.record("rooted_dots", (a, b), a.shape[:2], factor=factor, least=least)


def relative_dots(x: Tensor, table: Tensor, first: Tensor, count: int) -> Tensor:
    """Return the products of each head with `count` rows of a table -> (n, heads, count).

    Row i of x (n, heads, size) is multiplied with the rows from `first`[i] (n,) int32 on of `table`
    (rows, size), so that the table contains a vector for each distance between two places. A row outside of
    the table counts as zeros. The products are added in order.
    """
    fits = len(x.shape) == 3 and x.shape[2:] == table.shape[1:] and first.shape == x.shape[:1] and count > 0
    require(fits, "relative_dots", x.shape, table.shape, first.shape)
    return x.graph.record("relative_dots", (x, table, first), (*x.shape[:2], count), count=count)


def product(x: Tensor, weight: Weight) -> Tensor:
    """x (n, rows) times a plain `weight` (rows, columns): `linear` for a transposed matrix."""
    require(x.shape[1:] == weight.shape[:1] and weight.plain, "product", x.shape, weight.shape)
    return x.graph.record("product", (x, weight), (x.shape[0], weight.shape[1]))


def rms_norm(x: Tensor, weight: Weight | None, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang & Sennrich 2019).

    If x has heads, each head is normalized separately. Without a weight, the factor is 1.
    """
    require(weight is None or x.shape[-1:] == weight.shape, "rms_norm", x.shape, weight and weight.shape)
    return x.graph.record("rms_norm", (x,) if weight is None else (x, weight), x.shape, eps=eps)


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum(x²) + eps) over the last dimension: rows of length 1."""
    size = x.shape[-1]
    assert isinstance(size, int)
    return rms_norm(x, None, eps / size) * float(size**-0.5)


def erf_geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up with the exact gelu; `geglu` uses its approximation."""
    return multiply(gelu(gate), up)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021)."""
    positive = relu(x)
    return multiply(positive, positive)


def rms(x: Tensor) -> Tensor:
    """The root of the mean square of each row of x (n, size) -> (n, 1), a factor for `scale_rows`."""
    require(len(x.shape) == 2, "rms", x.shape)
    return x.graph.record("rms", (x,), (x.shape[0], 1))


def head_sums(x: Tensor) -> Tensor:
    """The sum of each head's elements of x (n, heads, size) -> (n, heads), factors for `scale_rows`."""
    require(len(x.shape) == 3, "head_sums", x.shape)
    return x.graph.record("head_sums", (x,), x.shape[:2])


def mix_streams(x: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums of the streams of x (n, streams, size) -> (n, outputs, size).

    weights (n, streams, outputs). The products are added in ascending order of the streams.
    """
    fits = len(x.shape) == len(weights.shape) == 3 and x.shape[:2] == weights.shape[:2]
    require(fits, "mix_streams", x.shape, weights.shape)
    return x.graph.record("mix_streams", (x, weights), (x.shape[0], weights.shape[2], x.shape[2]))


def sinkhorn(x: Tensor, iterations: int, eps: float) -> Tensor:
    """Make matrices (n, size, size) nearly doubly stochastic (Sinkhorn and Knopp 1967), from their logits.

    This is the softmax of each row, plus `eps`. Then all columns are divided by their sums plus `eps`, and
    `iterations` - 1 times all rows and then all columns.
    """
    require(len(x.shape) == 3 and x.shape[1] == x.shape[2] and iterations > 0, "sinkhorn", x.shape)
    return x.graph.record("sinkhorn", (x,), x.shape, iterations=iterations, eps=eps)


def gaussian_top_k(x: Tensor, multiplier: float) -> Tensor:
    """max(0, x - mean - multiplier · standard deviation) of each row of x (n, size).

    If a row is normally distributed, the multiplier determines the share of elements that are kept
    (Gemma 3n).
    """
    require(len(x.shape) == 2, "gaussian_top_k", x.shape)
    return x.graph.record("gaussian_top_k", (x,), x.shape, multiplier=multiplier)


def layer_norm(x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(variance(x) + eps) · weight + bias over the last dimension (Ba et al. 2016)."""
    fits = x.shape[-1:] == weight.shape and (bias is None or bias.shape == weight.shape)
    require(fits, "layer_norm", x.shape, weight.shape, bias and bias.shape)
    operands = (x, weight) if bias is None else (x, weight, bias)
    return x.graph.record("layer_norm", operands, x.shape, eps=eps)


def position_scale(positions: Tensor, length: int, beta: float, offset: int = 0) -> Tensor:
    """1 + beta · ln(1 + floor((position + offset) / length)) -> (n, 1), a factor for queries.

    It keeps attention sharp if the history is longer than `length` (Nakanishi 2025).
    """
    shape: Shape = (positions.shape[0], 1)
    return positions.graph.record(
        "position_scale", (positions,), shape, length=length, beta=beta, offset=offset
    )


def add_vector(x: Tensor, vector: Weight) -> Tensor:
    """Add `vector` to every row of x (n, size): (size,), or the first row of a plain (rows, size)."""
    require(x.shape[1:] == vector.shape[-1:], "add_vector", x.shape, vector.shape)
    return x.graph.record("add_vector", (x, vector), x.shape)


def scale_heads(x: Tensor, factors: npt.NDArray[np.float32]) -> Tensor:
    """Multiply each head of x (n, heads, size) by its factor in `factors` (heads,), the same in all rows."""
    require(len(x.shape) == 3 and x.shape[1:2] == factors.shape, "scale_heads", x.shape, factors.shape)
    factors = np.ascontiguousarray(factors, np.float32)
    return x.graph.record("scale_heads", (x,), x.shape, factors=factors)


def multiply_vector(x: Tensor, vector: Weight) -> Tensor:
    """Multiply every row of x (n, size) by `vector` (size,)."""
    require(x.shape[1:] == vector.shape, "multiply_vector", x.shape, vector.shape)
    return x.graph.record("multiply_vector", (x, vector), x.shape)


def slice(x: Tensor, first: int, count: int) -> Tensor:
    """Take `count` elements from `first` on of the last dimension of x (n, …, size) -> (n, …, count)."""
    size = x.shape[-1]
    fits = len(x.shape) > 1 and isinstance(size, int) and first >= 0 and first + count <= size
    require(fits, "slice", x.shape, (first, count))
    return x.graph.record("slice", (x,), (*x.shape[:-1], count), first=first, count=count)


def scatter(x: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """Replace the rows of x (n, size) at the distinct indices `places` (m,) int32 by `rows` (m, size)."""
    require(x.shape[1:] == rows.shape[1:], "scatter", x.shape, rows.shape)
    require(places.shape == rows.shape[:1], "scatter", rows.shape, places.shape)
    return x.graph.record("scatter", (x, rows, places), x.shape)


def average_rows(x: Tensor, rows: Dim, count: int) -> Tensor:
    """Average every `count` rows of x (n, size) -> (rows, size), where rows · count <= n.

    If the patches of each square are consecutive, this is average pooling.
    """
    require(len(x.shape) == 2 and count > 0, "average_rows", x.shape, count)
    return x.graph.record("average_rows", (x,), (rows, x.shape[1]), count=count)


def space_to_depth(x: Tensor, rows: Dim, count: int) -> Tensor:
    """Join every `count` rows of x (n, size) into one -> (rows, size · count).

    Their elements are interleaved: the first of each row, then the second of each row, and so on. If the
    patches of each square are consecutive, the result is the input of a convolution as a matrix product.
    """
    require(len(x.shape) == 2 and count > 0, "space_to_depth", x.shape, count)
    size = x.shape[1]
    assert isinstance(size, int)
    return x.graph.record("space_to_depth", (x,), (rows, size * count), count=count)


def concat(parts: Sequence[tuple[Tensor, int, int]]) -> Tensor:
    """Put rows (n, …, size) of several tensors side by side -> (n, …, sum of the sizes).

    Each part is (tensor, first, stride): its elements become the columns first, first + stride, and so on.
    """
    tensors = [part for part, _, _ in parts]
    sizes = [size for part in tensors for size in part.shape[-1:] if isinstance(size, int)]
    columns = [
        first + stride * index
        for (_, first, stride), size in zip(parts, sizes, strict=True)
        for index in range(size)
    ]
    leading = tensors[0].shape[:-1]
    fits = all(part.shape[:-1] == leading for part in tensors) and sorted(columns) == [*range(sum(sizes))]
    require(fits, "concat", *(part.shape for part in tensors))
    places = [(first, stride) for _, first, stride in parts]
    return tensors[0].graph.record("concat", tuple(tensors), (*leading, sum(sizes)), places=places)


def top_k(x: Tensor, counts: Tensor, max_k: int) -> Tensor:
    """Return the largest elements of each row of x (n, size), and their indices -> (n, 2, max_k).

    `counts` (n,) int32 is the number of elements for each row, up to `max_k`. They are in descending order,
    equal ones by ascending index. The indices follow as floats, which are exact below 2**24. If a row
    contains NaN, its first NaN comes first. Entries after the last element are undefined.
    """
    require(len(x.shape) == 2 and counts.shape == x.shape[:1], "top_k", x.shape, counts.shape)
    return x.graph.record("top_k", (x, counts), (x.shape[0], 2, max_k), max_k=max_k)


def sample(top: Tensor, chances: Tensor) -> Tensor:
    """Return the id of the token that a sampler would choose from each row of `top_k` -> (n, 1), as floats.

    `chances` (n, `NUM_CHANCES`) int32 contains for each row a random number below 2**24, and the bits of the
    temperature (float32), of top_p and of min_p (float64, the low half first). A temperature of 0 takes the
    largest. `chaski.sample.transforms` defines the steps. The result is undefined for rows with a `counts` of
    0, and where a sampler would refuse the logits.
    """
    fits = top.op == "top_k" and chances.shape == (top.shape[0], NUM_CHANCES)
    require(fits, "sample", top.op, chances.shape)
    x, counts = top.operands
    assert isinstance(x, Tensor)
    size = min(top.attributes["max_k"], x.shape[1])
    return top.graph.record("sample", (top, counts, chances), (top.shape[0], 1), size=size)


def scale_rows(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each row of x (n, …) by its factor in `factors` (n, 1), or each head by its own.

    Heads are those of x (n, heads, size) with `factors` (n, heads).
    """
    allowed = ((x.shape[0], 1), x.shape[:2])
    require(factors.shape in allowed[: len(x.shape) - 1], "scale_rows", x.shape, factors.shape)
    return x.graph.record("scale_rows", (x, factors), x.shape)
