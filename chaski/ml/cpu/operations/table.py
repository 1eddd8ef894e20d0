"""Table of the functions that turn operations into calls of native steps, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaski import _native
from chaski.ml.cpu.lowering import Lowering
from chaski.ml.cpu.operations import attention, elements, moe, products, recurrent, rows
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Graph

__all__ = ["OPERATIONS", "lower"]

OPERATIONS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(ELEMENTWISE, elements.elementwise),
    **products.PRODUCTS,
    "input": rows.input,
    "reshape": rows.reshape,
    "embedding": rows.embedding,
    "rows": rows.rows,
    "slice": rows.slice,
    "concat": rows.concat,
    "scatter": rows.scatter,
    "average_rows": rows.group_rows,
    "space_to_depth": rows.group_rows,
    "product": products.product,
    "top_k": rows.top_k,
    "adapt": products.adapt,
    "add": products.add,
    "rms_norm": products.rms_norm,
    "layer_norm": products.layer_norm,
    "scale_rows": elements.scale_rows,
    "add_vector": elements.by_vector,
    "multiply_vector": elements.by_vector,
    "rms": elements.rms,
    "gaussian_top_k": elements.gaussian_top_k,
    "position_scale": elements.position_scale,
    "rope_table": attention.rope_table,
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


def lower(graph: Graph, weights: _native.Weights | None, threads: int, is_plain: bool) -> Lowering:
    """Walk a graph once, in the order in which it was recorded; see `Lowering` for the result."""
    lowering = Lowering(graph, weights, threads, is_plain)
    for node in graph.nodes:
        OPERATIONS[node.op](lowering, node, *node.operands)
    return lowering
