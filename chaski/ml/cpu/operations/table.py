"""Table of the functions that lower operations to calls of native steps, by operation name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaski import _native
from chaski.ml.cpu.lowering import Lowering
from chaski.ml.cpu.operations import attention, elements, moe, products, recurrent, rows
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Graph

__all__ = ["OPERATIONS", "lower"]

_NAMED: tuple[Callable[..., None], ...] = (
    *(attention.rope_table, attention.rope, attention.store, attention.stored, attention.rotate_cells),
    *(attention.hadamard, attention.attention, attention.attention_by_distance),
    *(elements.scale_heads, elements.head_sums),
    *(attention.choose_cells, attention.chosen_attention, attention.entry_attention),
    *(elements.mix_streams, elements.sinkhorn, recurrent.pooling),
    *(elements.scale_rows, elements.rms, elements.gaussian_top_k, elements.position_scale),
    *(moe.router, moe.scale_experts, moe.scale_by_expert, moe.group_by_expert, moe.dispatch),
    *(moe.join_experts, moe.combine),
    *(products.product, products.adapt, products.add, products.rms_norm, products.layer_norm),
    *(recurrent.short_conv, recurrent.chunked_conv, recurrent.gated_delta),
    *(recurrent.ssd, recurrent.selective_scan, recurrent.generalized_delta),
    *(rows.input, rows.reshape, rows.embedding, rows.rows, rows.slice, rows.concat, rows.scatter),
    *(rows.top_k, rows.token_numbers, rows.hash_ngrams, rows.rooted_dots),
    rows.relative_dots,
)
"""The functions that have the names of their operations."""

OPERATIONS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(ELEMENTWISE, elements.elementwise),
    **products.PRODUCTS,
    **{function.__name__: function for function in _NAMED},
    "average_rows": rows.group_rows,
    "space_to_depth": rows.group_rows,
    "add_vector": elements.by_vector,
    "multiply_vector": elements.by_vector,
}
"""Each function takes the lowering, the node and the node's operands."""


def lower(graph: Graph, weights: _native.Weights | None, threads: int, is_plain: bool) -> Lowering:
    """Walk a graph once, in the order in which it was recorded; see `Lowering` for the result."""
    lowering = Lowering(graph, weights, threads, is_plain)
    for node in graph.nodes:
        OPERATIONS[node.op](lowering, node, *node.operands)
    return lowering
