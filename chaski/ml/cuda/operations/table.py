"""Table of the functions that turn operations into steps, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaski.errors import UnsupportedError
from chaski.ml.cuda.lowering import Lowering
from chaski.ml.cuda.operations import adapters, attention, elements, moe, products, recurrent, rows
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Tensor

__all__ = ["HOST_OPERATIONS", "OPERATIONS", "lower_node"]

HOST_OPERATIONS = ("rope_table", "position_scale")
"""What the host computes from the inputs: its last bits are those of the host's mathematical library."""

OPERATIONS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(ELEMENTWISE, elements.elementwise),
    **products.PRODUCTS,
    "adapt": adapters.adapt,
    "add": products.add,
    "embedding": products.embedding,
    "product": products.product,
    "rms_norm": elements.rms_norm,
    "layer_norm": elements.layer_norm,
    "scale_rows": elements.scale_rows,
    "add_vector": elements.by_vector,
    "multiply_vector": elements.by_vector,
    "rms": elements.rms,
    "gaussian_top_k": elements.gaussian_top_k,
    "rows": rows.rows,
    "scatter": rows.scatter,
    "slice": rows.slice,
    "concat": rows.concat,
    "average_rows": rows.group_rows,
    "space_to_depth": rows.group_rows,
    "top_k": rows.top_k,
    "rope": attention.rope,
    "store": attention.store,
    "stored": attention.stored,
    "rotate_cells": attention.rotate_cells,
    "attention": attention.attention,
    "attention_by_distance": attention.attention_by_distance,
    "router": moe.router,
    "scale_experts": moe.scale_experts,
    "group_by_expert": moe.group_by_expert,
    "dispatch": moe.dispatch,
    "combine": moe.combine,
    "short_conv": recurrent.short_conv,
    "chunked_conv": recurrent.chunked_conv,
    "gated_delta": recurrent.gated_delta,
}
"""Each takes the lowering, the node and the node's operands."""


def lower_node(lowering: Lowering, node: Tensor) -> None:
    """Add the steps of a node. Raises UnsupportedError for an operation that has no kernel."""
    if node.op not in OPERATIONS:
        raise UnsupportedError(
            f"the cuda backend has no kernel for {node.op} yet: load the model with the cpu backend"
        )
    OPERATIONS[node.op](lowering, node, *node.operands)
