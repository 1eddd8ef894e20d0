"""Table of the functions that lower operations to steps, by operation name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaski.errors import UnsupportedError
from chaski.ml.cuda.lowering import Lowering
from chaski.ml.cuda.operations import (
    adapters,
    attention,
    elements,
    moe,
    ngrams,
    products,
    recurrent,
    rows,
    streams,
)
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Tensor

__all__ = ["HOST_OPERATIONS", "OPERATIONS", "lower_node"]

HOST_OPERATIONS = ("rope_table", "position_scale")
"""Operations that the host computes, so that their last bits come from its mathematical library."""

_NAMED: tuple[Callable[..., None], ...] = (
    adapters.adapt,
    *(
        attention.hadamard,
        attention.rope,
        attention.store,
        attention.stored,
        attention.rotate_cells,
        attention.attention,
    ),
    *(attention.attention_by_distance, attention.choose_cells, attention.chosen_attention),
    attention.entry_attention,
    *(elements.rms_norm, elements.layer_norm, elements.scale_rows, elements.scale_heads, elements.rms),
    *(elements.head_sums, elements.gaussian_top_k),
    *(moe.router, moe.scale_experts, moe.scale_by_expert, moe.group_by_expert, moe.dispatch),
    *(moe.join_experts, moe.combine),
    *(products.add, products.embedding, products.product),
    *(ngrams.token_numbers, ngrams.hash_ngrams, ngrams.rooted_dots),
    *(recurrent.short_conv, recurrent.chunked_conv, recurrent.gated_delta),
    *(recurrent.selective_scan, recurrent.generalized_delta, recurrent.pooling),
    *(rows.rows, rows.scatter, rows.slice, rows.concat, rows.top_k, rows.sample, rows.relative_dots),
    *(streams.mix_streams, streams.sinkhorn),
)
"""The functions that have the names of their operations."""

OPERATIONS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(ELEMENTWISE, elements.elementwise),
    **products.PRODUCTS,
    **{function.__name__: function for function in _NAMED},
    "add_vector": elements.by_vector,
    "multiply_vector": elements.by_vector,
    "ssd": recurrent.gated_delta,
    "average_rows": rows.group_rows,
    "space_to_depth": rows.group_rows,
}
"""Each function takes the lowering, the node and the node's operands."""


def lower_node(lowering: Lowering, node: Tensor) -> None:
    """Add the steps of a node. Raises UnsupportedError for an operation without a kernel."""
    if node.op not in OPERATIONS:
        raise UnsupportedError(
            f"the cuda backend has no kernel for {node.op}: load the model with the cpu backend"
        )
    OPERATIONS[node.op](lowering, node, *node.operands)
