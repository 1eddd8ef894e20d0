"""A digest of a recorded graph. Graphs that compute the same from the same weights have equal digests."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.ml.graph import Dim, Graph, KVBuffer, Operand, Tensor, Weight

__all__ = ["graph_digest"]


def graph_digest(graph: Graph) -> bytes:
    """Return 32 bytes that change with any operation, shape, constant or name of a weight in a graph.

    The maximum numbers of tokens and cells do not affect it. Raises TypeError for an attribute of an
    unsupported type.
    """
    found = blake2b(digest_size=32)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        operands = [_operand(operand, numbers) for operand in node.operands]
        attributes = [(name, _value(value)) for name, value in sorted(node.attributes.items())]
        shape = [_value(size) for size in node.shape]
        if any(isinstance(each, KVBuffer) and node.shape[:1] == (each.cells,) for each in node.operands):
            shape[0] = "cells"  # a head may have as many elements as there are cells
        found.update(repr((node.op, operands, shape, node.dtype.value, attributes)).encode())
    found.update(repr(sorted((name, numbers[node]) for name, node in graph.outputs.items())).encode())
    return found.digest()


def _operand(operand: Operand, numbers: Mapping[Tensor, int]) -> object:
    if isinstance(operand, Tensor):
        return numbers[operand]
    if isinstance(operand, Weight):
        return operand.name, operand.shape
    assert isinstance(operand, KVBuffer)
    return operand.role.value, operand.heads, operand.size, operand.dtype.value


def _value(value: Any) -> object:
    """Return an object whose `repr` contains everything relevant about an attribute."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Dim):
        return value.name
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, blake2b(np.ascontiguousarray(value).data).hexdigest()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_value(each) for each in value]
    if isinstance(value, Struct):
        parts = [(name, _value(getattr(value, name))) for name in value.__struct_fields__]
        return type(value).__name__, parts
    raise TypeError(f"no digest can be made of {type(value).__name__}")
