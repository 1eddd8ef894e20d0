"""Lowering of each operation to native steps of the cpu backend; `table` lists them."""

from chaski.ml.cpu.operations.table import OPERATIONS, lower

__all__ = ["OPERATIONS", "lower"]
