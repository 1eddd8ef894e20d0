"""The table of matrix products: operations whose matrices a backend may hold quantized.

Each product is declared once, by the function that records it and its definition in NumPy and float32. The
operands are the rows, for experts the groups of rows, the matrix, and optionally the bias. If the matrix is
quantized, the product rounds its rows (see `chaski.ml.rounding`). A backend adds its kernels under the same
name in its own `operations/products.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import Tensor, Weight, require

__all__ = ["PRODUCTS", "expert_linear", "first_outputs", "head_linear", "linear", "matrix_weight"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
P = ParamSpec("P")

PRODUCTS: dict[str, Callable[..., F32]] = {}
"""The definition of every product, by name. It takes arrays, then the node's attributes."""


def matrix_weight(node: Tensor) -> Weight:
    """Return the weight that a node multiplies by, which is the first weight among its operands."""
    return next(operand for operand in node.operands if isinstance(operand, Weight))


def _product(definition: Callable[..., F32]) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Add an operation to the table, under the name of the function that records it."""

    def add(record: Callable[P, Tensor]) -> Callable[P, Tensor]:
        PRODUCTS[record.__name__] = definition
        return record

    return add


def _linear(x: F32, weight: F32, bias: F32 | None = None) -> F32:
    y = x @ weight.T
    return y if bias is None else y + bias


@_product(_linear)
def linear(x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
    """x (n, columns) times the transposed `weight` (rows, columns), plus `bias` (rows,) -> (n, rows).

    The weight's scale multiplies the product, before the bias. Adapters of the graph change the result; see
    `Adapters`.
    """
    require(x.shape[1:] == (weight.shape[1],), "linear", x.shape, weight.shape)
    require(bias is None or bias.shape == (weight.shape[0],), "linear", weight.shape, bias and bias.shape)
    own = None if weight.scale is not None else bias
    operands = (x, weight) if own is None else (x, weight, own)
    y = weight.scaled(x.graph.record("linear", operands, (x.shape[0], weight.shape[0])))
    if bias is not own:
        assert bias is not None
        y = y.graph.record("add_vector", (y, bias), y.shape)
    return y if x.graph.adapters is None else x.graph.adapters.applied(y, x, weight)


def _first_outputs(x: F32, weight: F32, *, count: int) -> F32:
    return _linear(x, weight[:count])


@_product(_first_outputs)
def first_outputs(x: Tensor, weight: Weight, count: int) -> Tensor:
    """Return the first `count` results of `linear`, without a bias; `count` is a multiple of 256."""
    require(x.shape[1:] == (weight.shape[1],), "first_outputs", x.shape, weight.shape)
    require(0 < count <= weight.shape[0] and count % 256 == 0, "first_outputs", weight.shape, count)
    return weight.scaled(x.graph.record("first_outputs", (x, weight), (x.shape[0], count), count=count))


def _head_linear(x: F32, weight: F32) -> F32:
    return (x.swapaxes(0, 1) @ weight.swapaxes(1, 2)).swapaxes(0, 1)


@_product(_head_linear)
def head_linear(x: Tensor, weight: Weight) -> Tensor:
    """Multiply each head of x (n, heads, columns) by its own matrix in `weight` (heads, rows, columns).

    Each head is rounded by itself. Returns (n, heads, rows).
    """
    heads, rows, columns = weight.shape
    require(x.shape[1:] == (heads, columns), "head_linear", x.shape, weight.shape)
    return weight.scaled(x.graph.record("head_linear", (x, weight), (x.shape[0], heads, rows)))


def _expert_linear(x: F32, groups: I32, weight: F32, bias: F32 | None = None) -> F32:
    rows = x.reshape(-1, x.shape[2])
    y = np.empty((len(rows), weight.shape[1]), np.float32)
    begin = 0
    for _, _, expert, end in groups.reshape(-1, 4):
        if end == begin:
            break
        y[begin:end] = rows[begin:end] @ weight[expert].T
        if bias is not None:
            y[begin:end] += bias[expert]
        begin = end
    return y.reshape(*x.shape[:2], y.shape[1])


@_product(_expert_linear)
def expert_linear(x: Tensor, groups: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
    """Multiply each row of x (n, count, columns) by its expert's matrix in `weight`.

    weight  (experts, rows, columns)
    groups  the rows of each expert, from `group_by_expert`
    bias    (experts, rows), a plain weight

    Returns (n, count, rows).
    """
    experts, rows, columns = weight.shape
    if x.shape[1:] != (groups.shape[1], columns) or (bias is not None and bias.shape != (experts, rows)):
        raise ValueError(f"expert_linear: {x.shape} and {weight.shape} do not fit")
    if weight.scale is not None and bias is not None:
        raise ValueError(f"expert_linear: {weight.name} has one scale for all experts, and a bias")
    operands = (x, groups, weight) if bias is None else (x, groups, weight, bias)
    return weight.scaled(x.graph.record("expert_linear", operands, (*x.shape[:2], rows)))
