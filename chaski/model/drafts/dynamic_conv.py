"""The convolutions of DFlash 2 (Inco AI 2026, https://inco.ai/blog/dflash2/), whose weights depend on tokens.

A token's row is the sum of its own row and those of the tokens before it in its block, each times weights of
its channels. These are fixed weights plus a number for each group of channels that follows from the token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import DType, Tensor, Weight
from chaski.ml.nn import Linear, Module

__all__ = ["ConvConfig", "DynamicConv", "TokenBefore"]


class ConvConfig(Struct, frozen=True):
    """`taps` rows are added up, each of `size` channels in groups of `group`."""

    taps: int
    group: int
    size: int

    @classmethod
    def read(cls, file: GGUFFile, size: int) -> ConvConfig:
        """Read the sizes. Raises ModelError for those that do not fit `size` channels."""
        taps, group = (file.get(f"dflash.conv_{name}_size", int) for name in ("kernel", "group"))
        if taps < 1 or group < 1 or size % group:
            raise ModelError(
                f"{file.path}: dflash.conv_kernel_size is {taps} and dflash.conv_group_size {group}; the "
                f"first must be positive, and the second must divide {size}"
            )
        return cls(taps, group, size)


class TokenBefore(Struct, frozen=True, eq=False):
    """For each token of blocks the row of the token before it (n,); `exists` (n, 1) is 0 for first ones."""

    rows: Tensor
    exists: Tensor

    @classmethod
    def declared(cls, tokens: Tensor) -> TokenBefore:
        """Declare the inputs of a graph with these tokens (n,)."""
        count = tokens.shape[0]
        rows = tokens.graph.input("before", (count,), DType.I32)
        return cls(rows, tokens.graph.input("exists", (count, 1), DType.F32))

    @staticmethod
    def values(sizes: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values of these inputs for blocks of these sizes."""
        places = np.concatenate([np.arange(size) for size in sizes])
        rows = np.maximum(np.arange(len(places)) - 1, 0)
        return {"before": rows.astype(np.int32), "exists": (places > 0).astype(np.float32)[:, None]}

    def earlier(self, x: Tensor) -> Tensor:
        """Return for each token the row of x (n, size) of the token before it, or zeros."""
        return ops.scale_rows(x.rows(self.rows), self.exists)


class DynamicConv(Module):
    """Two convolutions, of the input of a part of a layer and of its output. The input gives both weights.

    Tensors have names that start with `name`. Sums are in the order of the taps, each time the product with
    the fixed weight first.
    """

    inline = True

    def __init__(self, name: str, config: ConvConfig) -> None:
        c = self._config = config
        self._name = f"{name}_conv"
        rows, groups = 2 * c.taps, c.size // c.group
        setattr(self, f"{self._name}_base", Weight((rows, c.size), host=True, stored=(2, c.taps, c.size)))
        setattr(self, f"{self._name}_proj", Linear(c.size, rows * groups))

    def around(self, x: Tensor, part: Callable[[Tensor], Tensor], before: TokenBefore) -> Tensor:
        """Return the convolved output of `part` for the convolved rows of x (n, size)."""
        weights: Tensor = getattr(self, f"{self._name}_proj")(x)
        return self._convolved(part(self._convolved(x, weights, 0, before)), weights, 1, before)

    def _convolved(self, x: Tensor, weights: Tensor, side: int, before: TokenBefore) -> Tensor:
        c, fixed = self._config, getattr(self, f"{self._name}_base").elements
        groups = c.size // c.group
        terms = list[Tensor]()
        for tap in range(side * c.taps, (side + 1) * c.taps):
            x = before.earlier(x) if terms else x
            own = ops.slice(weights, tap * groups, groups)
            terms.append(ops.scale_heads(x.reshape(c.size, 1), fixed[tap]).reshape(c.size))
            terms.append(ops.scale_rows(x.reshape(groups, c.group), own).reshape(c.size))
        total, *others = terms
        for term in others:
            total = total + term
        return total
