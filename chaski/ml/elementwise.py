"""The table of elementwise operations. Each is declared once, by its formula in NumPy and float32.

A declaration contains everything that the Python code needs: the name, the operands (positional parameters),
the numbers (keyword parameters) and the meaning. A call with tensors records a node. The reference backend
computes with `formula`, and the cpu and cuda backends use the function of the same name in
`native/include/formulas.h`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaski.ml.graph import Tensor, require

__all__ = [
    "ELEMENTWISE",
    "Elementwise",
    "add",
    "clamp",
    "clamped_swiglu",
    "exp",
    "geglu",
    "gelu",
    "gelu_tanh",
    "multiply",
    "quick_gelu",
    "relu",
    "scale",
    "sigmoid",
    "silu",
    "softcap",
    "softplus",
    "swiglu",
]

F32 = npt.NDArray[np.float32]


class Elementwise:
    """An operation on tensors of one shape. Each element depends on the operands' elements at its place."""

    def __init__(self, formula: Callable[..., F32]) -> None:
        self.__doc__ = formula.__doc__
        self.name = formula.__name__
        self.formula = formula
        declared = inspect.signature(formula).parameters.values()
        self.operands = tuple(p.name for p in declared if p.kind is not p.KEYWORD_ONLY)
        self.parameters = tuple(p.name for p in declared if p.kind is p.KEYWORD_ONLY)

    def __call__(self, *operands: Tensor, **parameters: float) -> Tensor:
        if len(operands) != len(self.operands) or parameters.keys() != set(self.parameters):
            raise TypeError(f"{self.name} takes {', '.join(self.operands + self.parameters)}")
        shapes = [operand.shape for operand in operands]
        require(all(shape == shapes[0] for shape in shapes), self.name, *shapes)
        return operands[0].graph.record(self.name, operands, shapes[0], None, **parameters)


ELEMENTWISE: dict[str, Elementwise] = {}
"""Every elementwise operation, by its name."""


def _elementwise(formula: Callable[..., F32]) -> Elementwise:
    operation = Elementwise(formula)
    ELEMENTWISE[operation.name] = operation
    return operation


@_elementwise
def add(a: F32, b: F32) -> F32:
    """a + b."""
    return a + b


@_elementwise
def multiply(a: F32, b: F32) -> F32:
    """a · b."""
    return a * b


@_elementwise
def scale(x: F32, *, factor: float) -> F32:
    """x · factor."""
    return x * np.float32(factor)


@_elementwise
def exp(x: F32) -> F32:
    """e^x. The native kernel returns 2.4e38 for x above 88.37, and 0 if e^x is below the normal numbers."""
    y: F32 = np.exp(x)
    return y


@_elementwise
def sigmoid(x: F32) -> F32:
    """1 / (1 + e^-x)."""
    # For very negative x, e^-x overflows to infinity, and the quotient is 0, which is the correct limit.
    with np.errstate(over="ignore"):
        y: F32 = np.reciprocal(1 + np.exp(-x))
    return y


@_elementwise
def softplus(x: F32) -> F32:
    """ln(1 + e^x), as max(x, 0) + ln(1 + e^-|x|) to avoid overflow and cancellation."""
    y: F32 = np.logaddexp(np.float32(0), x)
    return y


@_elementwise
def relu(x: F32) -> F32:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


@_elementwise
def silu(x: F32) -> F32:
    """x · sigmoid(x) (Hendrycks & Gimpel 2016)."""
    with np.errstate(over="ignore"):
        y: F32 = x / (1 + np.exp(-x))
    return y


@_elementwise
def gelu(x: F32) -> F32:
    """x · Φ(x), where Φ is the normal distribution, by erf (Hendrycks & Gimpel 2016)."""
    erf = np.array([math.erf(value) for value in x.ravel() / math.sqrt(2)], np.float32).reshape(x.shape)
    return np.float32(0.5) * x * (1 + erf)


@_elementwise
def gelu_tanh(x: F32) -> F32:
    """`gelu` by its tanh approximation."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    y: F32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


@_elementwise
def quick_gelu(x: F32) -> F32:
    """`gelu` by its sigmoid approximation, x · sigmoid(1.702 x)."""
    with np.errstate(over="ignore"):
        y: F32 = x / (1 + np.exp(-np.float32(1.702) * x))
    return y


@_elementwise
def softcap(x: F32, *, cap: float) -> F32:
    """cap · tanh(x / cap): values are bounded to ±cap."""
    y: F32 = np.float32(cap) * np.tanh(x / np.float32(cap))
    return y


@_elementwise
def clamp(x: F32, *, low: float, high: float) -> F32:
    """x limited to the range from `low` to `high`; either may be infinite."""
    y: F32 = np.clip(x, np.float32(low), np.float32(high))
    return y


@_elementwise
def swiglu(gate: F32, up: F32) -> F32:
    """silu(gate) · up (Shazeer 2020)."""
    return silu.formula(gate) * up


@_elementwise
def geglu(gate: F32, up: F32) -> F32:
    """gelu(gate) · up (Shazeer 2020), gelu by its tanh approximation."""
    return gelu_tanh.formula(gate) * up


@_elementwise
def clamped_swiglu(gate: F32, up: F32, *, alpha: float, limit: float) -> F32:
    """g · sigmoid(alpha g) · (u + 1), with g = min(gate, limit) and u = up within ±limit (gpt-oss)."""
    gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    with np.errstate(over="ignore"):
        y: F32 = gate / (1 + np.exp(-np.float32(alpha) * gate)) * (up + 1)
    return y
