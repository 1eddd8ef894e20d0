"""How each operation of a graph becomes steps; `table` lists them."""

from chaski.ml.cuda.operations.table import HOST_OPERATIONS, OPERATIONS, lower_node

__all__ = ["HOST_OPERATIONS", "OPERATIONS", "lower_node"]
