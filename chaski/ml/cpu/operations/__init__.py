"""What the cpu backend makes of each operation; `table` says where each one is."""

from chaski.ml.cpu.operations.table import OPERATIONS, lower

__all__ = ["OPERATIONS", "lower"]
