"""The layers that most architectures share. Each architecture connects them explicitly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn.module import Joined, Module

__all__ = [
    "MLP",
    "ConvKernel",
    "Embedding",
    "FusedGLU",
    "GroupedLinear",
    "HeadNorms",
    "LayerNorm",
    "Linear",
    "Norm",
    "PatchEmbedding",
    "PlainLayerNorm",
    "RMSNorm",
    "SwiGLU",
    "TransposedLinear",
]

_COLORS = 3


class Linear(Module):
    """y = x · weightᵀ + bias. The bias is used when the file has one; `optional` allows both to be absent."""

    def __init__(self, in_features: int, out_features: int, optional: bool = False) -> None:
        self.weight = Weight((out_features, in_features), optional, split=0)
        self.bias = Weight((out_features,), optional=True, split=0)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias if self.bias.is_present else None)


class GroupedLinear(Module):
    """A block-diagonal product: each of `groups` parts of x has a matrix, whose rows files store together.

    In files the tensor is called `name`.
    """

    inline = True

    def __init__(self, name: str, groups: int, in_features: int, out_features: int) -> None:
        self._name, self._sizes = name, (in_features, out_features)
        setattr(self, name, [Linear(in_features, out_features) for _ in range(groups)])

    @property
    def _groups(self) -> Sequence[Linear]:
        groups: Sequence[Linear] = getattr(self, self._name)
        return groups

    def joined_weights(self, prefix: str = "") -> Iterator[tuple[str, list[tuple[str, Weight]]]]:
        whole = f"{prefix}.{self._name}" if prefix else self._name
        parts = enumerate(self._groups)
        yield f"{whole}.weight", [(f"{whole}.{index}.weight", part.weight) for index, part in parts]

    def __call__(self, x: Tensor) -> Tensor:
        """x (n, groups · in) -> (n, groups · out)."""
        inputs, outputs = self._sizes
        parts = [part(ops.slice(x, i * inputs, inputs)) for i, part in enumerate(self._groups)]
        return ops.concat([(part, index * outputs, 1) for index, part in enumerate(parts)])


class Factor(Module):
    """A number that multiplies states, such as the output of a layer; 1 if the file has none."""

    def __init__(self) -> None:
        self.weight = Weight((1,), optional=True, host=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x if self.weight.array is None else x * float(self.weight.array[0])


class ConvKernel(Module):
    """The filters of a convolution over tokens, with `taps` elements per channel, for `ops.short_conv`."""

    def __init__(self, channels: int, taps: int) -> None:
        self.weight = Weight((channels, taps), host=True)


class TransposedLinear(Module):
    """y = x · weight, for a matrix that files store transposed: one row per input element."""

    def __init__(self, in_features: int, out_features: int) -> None:
        self.weight = Weight((in_features, out_features), plain=True, split=1)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.product(x, self.weight)


class PatchEmbedding(Linear):
    """A convolution with adjacent windows, computed as a product with each patch. Files store its kernel.

    Patches are (n, 3 · patch_size²), color by color.
    """

    def __init__(self, patch_size: int, size: int) -> None:
        super().__init__(_COLORS * patch_size**2, size)
        self.weight.stored = size, _COLORS, patch_size, patch_size


class Embedding(Module):
    """A row of `size` values for each of `count` ids; `project` uses the same table as an output layer."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = Weight((count, size), split=0)

    def __call__(self, ids: Tensor) -> Tensor:
        return ops.embedding(ids, self.weight)

    def project(self, x: Tensor) -> Tensor:
        """x (n, size) -> (n, count), for models whose output is tied to the embedding."""
        return ops.linear(x, self.weight)


class RMSNorm(Module):
    """Root-mean-square normalization over the last dimension. `optional` allows the weight to be absent."""

    def __init__(self, size: int, eps: float, optional: bool = False) -> None:
        self.weight = Weight((size,), optional)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self._eps)


class PlainRMSNorm(RMSNorm):
    """A root-mean-square norm without weights."""

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, None, self._eps)


class LayerNorm(Module):
    """Normalization to mean 0 and variance 1 over the last dimension.

    bias: False for models that may have none. optional: a file may lack the whole norm.
    """

    def __init__(self, size: int, eps: float, bias: bool = True, optional: bool = False) -> None:
        self.weight = Weight((size,), optional)
        self.bias = Weight((size,), optional=optional or not bias)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias if self.bias.is_present else None, self._eps)


class PlainLayerNorm(LayerNorm):
    """A layer norm without weights."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps, optional=True)
        self.weight = Weight((size,), constant=1.0)


class StreamNorm(Module):
    """A root-mean-square norm of each of `count` parts of x (n, count · size), with separate weights."""

    def __init__(self, count: int, size: int, eps: float) -> None:
        self.weight = Weight((count * size,))
        self._shape, self._eps = (count, size), eps

    def __call__(self, x: Tensor) -> Tensor:
        count, size = self._shape
        parts = ops.rms_norm(x.reshape(count, size), None, self._eps)
        return ops.multiply_vector(parts.reshape(count * size), self.weight)


class HeadNorms(Module):
    """A layer norm of each head of x (n, heads · size), with separate weights: (heads, size) in files.

    The file may have biases of the same shape.
    """

    def __init__(self, heads: int, size: int, eps: float, optional: bool = False) -> None:
        self._shape = heads, size
        self._norm = PlainLayerNorm(size, eps)
        self.weight = Weight((heads * size,), optional, stored=(heads, size))
        self.bias = Weight((heads * size,), optional=True, stored=(heads, size))

    def __call__(self, x: Tensor) -> Tensor:
        heads, size = self._shape
        x = ops.multiply_vector(self._norm(x.reshape(heads, size)).reshape(heads * size), self.weight)
        return ops.add_vector(x, self.bias) if self.bias.is_present else x


Norm: TypeAlias = RMSNorm | LayerNorm


class MLP(Module):
    """The feed-forward block without a gate: ffn_down(activation(ffn_up x))."""

    inline = True

    def __init__(self, size: int, hidden: int, activation: Callable[[Tensor], Tensor]) -> None:
        self._activation = activation
        self.ffn_up = Linear(size, hidden)
        self.ffn_down = Linear(hidden, size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ffn_down(self._activation(self.ffn_up(x)))


class SwiGLU(Module):
    """The gated feed-forward block: ffn_down(silu(ffn_gate x) · ffn_up x), or of another `activation`."""

    inline = True
    joined = Joined("ffn_gate_up", ("ffn_gate", "ffn_up"))

    def __init__(
        self, size: int, hidden: int, activation: Callable[[Tensor, Tensor], Tensor] = ops.swiglu
    ) -> None:
        self._activation = activation
        self.ffn_gate = Linear(size, hidden)
        self.ffn_up = Linear(size, hidden)
        self.ffn_down = Linear(hidden, size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ffn_down(self._activation(self.ffn_gate(x), self.ffn_up(x)))


class FusedGLU(SwiGLU):
    """`SwiGLU` for files that store the rows of gate and up together as `ffn_up`."""

    joined = Joined("ffn_up", ("ffn_gate", "ffn_up"))
