"""Matrix products, the sums that are fused with them, and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaski import _native
from chaski.ml.cpu.adapter_slots import CPUAdapterSlots
from chaski.ml.cpu.lowering import Buffer, Lowering, offset
from chaski.ml.cpu.operations.elements import elementwise
from chaski.ml.graph import AdapterTable, Dim, Operand, Tensor, Weight, width

__all__ = ["PRODUCTS", "adapt", "add", "layer_norm", "product", "rms_norm"]


def rms_norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight | None = None) -> None:
    _norm(lowering, node, x, weight=offset(weight))


def layer_norm(
    lowering: Lowering, node: Tensor, x: Tensor, weight: Weight, bias: Weight | None = None
) -> None:
    _norm(lowering, node, x, weight=offset(weight), bias=offset(bias))


def _norm(lowering: Lowering, node: Tensor, x: Tensor, **vectors: int | None) -> None:
    size = node.shape[-1]
    assert isinstance(size, int)
    lowering.call(
        node.op,
        {"x": x},
        {"y": lowering.new(node), **lowering.quantized_with(node)},
        dim=lowering.dim(node),
        weights=lowering.weights,
        heads=width(node) // size,
        size=size,
        eps=node.attributes["eps"],
        k=lowering.k_of(node),
        **vectors,
    )


def linear(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight, bias: Weight | None = None) -> None:
    if node not in lowering.sums and node not in lowering.adapted:
        _product(lowering, node, node, None)


def adapt(lowering: Lowering, node: Tensor, *_: Operand) -> None:
    if node not in lowering.sums:
        _adapt(lowering, node, node, None)


def _adapt(lowering: Lowering, node: Tensor, adapt: Tensor, residual: Tensor | None) -> None:
    """Lower a product, the changes that adapters make to it, and the residual that is added last.

    The native steps run in one phase: while one thread waits for the memory of adapters, others multiply.
    """
    y, x, lists, uses, table = adapt.operands
    assert isinstance(y, Tensor)
    assert isinstance(x, Tensor)
    assert isinstance(lists, Tensor)
    assert isinstance(uses, Tensor)
    assert isinstance(table, AdapterTable)
    assert isinstance(table.handle, CPUAdapterSlots)
    if lists not in lowering.adapter_rows:
        lowering.adapter_rows[lists] = len(lowering.adapter_rows)
        lowering.setup(
            "group_lora_rows",
            dim=lowering.dim(lists),
            uses_dim=lowering.dim(uses),
            lists=lowering.buffer(lists),
            uses=lowering.buffer(uses),
            table=table.handle.native,
            max_width=table.max_width,
        )
    leading = x.shape[0]
    assert isinstance(leading, Dim)
    _, weight, bias = _operands(y)
    lowering.call(
        "adapted_matmul",
        {**lowering.activations(y, x), "x": x, "residual": residual},
        {"y": lowering.new(node), "t": Buffer(4 * leading.maximum * table.max_width, table.max_width)},
        dim=lowering.dim(x),
        weight=weight.handle,
        weights=lowering.weights,
        bias=offset(bias),
        table=table.handle.native,
        matrix=adapt.attributes["matrix"],
        rows=lowering.adapter_rows[lists],
        max_width=table.max_width,
    )


def first_outputs(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight) -> None:
    assert isinstance(weight.handle, _native.WeightMatrix)
    lowering.call(
        "matmul",
        {**lowering.activations(node, x), "residual": None},
        {"y": lowering.new(node)},
        dim=lowering.dim(node),
        weight=weight.handle.first_rows(node.attributes["count"]),
        weights=lowering.weights,
        bias=offset(None),
    )


def head_linear(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight) -> None:
    lowering.call(
        "head_matmul",
        {**lowering.activations(node, x)},
        {"y": lowering.new(node)},
        dim=lowering.dim(node),
        heads=weight.handle,
    )


def expert_linear(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, weight: Weight, bias: Weight | None = None
) -> None:
    experts = weight.handle
    stack = {"experts": experts} if isinstance(experts, _native.ExpertStack) else {}
    if stack:
        lowering.request_experts(groups)
    lowering.call(
        "expert_matmul",
        {**lowering.activations(node, x), "groups": groups, **stack},
        {"y": lowering.new(node)},
        dim=lowering.dim(node),
        count=groups.shape[1],
        **({} if stack else {"experts": experts}),
        weights=lowering.weights,
        bias=offset(bias),
    )


PRODUCTS: Mapping[str, Callable[..., None]] = {
    "linear": linear,
    "first_outputs": first_outputs,
    "head_linear": head_linear,
    "expert_linear": expert_linear,
}
"""How each operation of `chaski.ml.products` is lowered."""


def product(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight) -> None:
    lowering.compute(
        node,
        {"x": x},
        depth=weight.shape[0],
        width=width(node),
        weights=lowering.weights,
        matrix=offset(weight),
    )


def add(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    for product, residual in ((b, a), (a, b)):
        if lowering.sums.get(product) is node:
            (_adapt if product.op == "adapt" else _product)(lowering, node, product, residual)
            return
    elementwise(lowering, node, a, b)


def _product(lowering: Lowering, node: Tensor, product: Tensor, residual: Tensor | None) -> None:
    """Lower a matrix product and the residual that is added to it; `node` is the sum."""
    x, weight, bias = _operands(product)
    lowering.call(
        "matmul",
        {**lowering.activations(product, x), "residual": residual},
        {"y": lowering.new(node)},
        dim=lowering.dim(node),
        weight=weight.handle,
        weights=lowering.weights,
        bias=offset(bias),
    )


def _operands(product: Tensor) -> tuple[Tensor, Weight, Weight | None]:
    x, weight, *rest = product.operands
    assert isinstance(x, Tensor)
    assert isinstance(weight, Weight)
    bias = rest[0] if rest else None
    assert bias is None or isinstance(bias, Weight)
    return x, weight, bias
