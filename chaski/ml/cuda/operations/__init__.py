"""Lowering of each operation of a graph to steps; `table` lists the functions."""

from chaski.ml.cuda.operations.products import with_heads_apart
from chaski.ml.cuda.operations.table import HOST_OPERATIONS, OPERATIONS, lower_node

__all__ = ["HOST_OPERATIONS", "OPERATIONS", "lower_node", "with_heads_apart"]
