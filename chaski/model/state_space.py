"""Layers with a state space: Mamba 2 (Dao and Gu 2024, https://arxiv.org/abs/2405.21060)."""

from __future__ import annotations

from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent, RecurrentLayer, gated_delta
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import Linear, Module

__all__ = ["Mamba2", "Mamba2Config"]


class Mamba2Config(Struct, frozen=True):
    """Sizes of Mamba 2 layers. Consecutive heads share the vectors B and C of a group."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    taps: int

    @classmethod
    def read(cls, file: GGUFFile, groups: int | None = None) -> Mamba2Config:
        """Read the sizes; `groups` replaces the file's. Raises ModelError if heads and sizes do not fit."""
        arch = file.architecture
        groups = file.get(f"{arch}.ssm.group_count", int) if groups is None else groups
        heads, inner = (file.get(f"{arch}.ssm.{name}", int) for name in ("time_step_rank", "inner_size"))
        if not (groups and heads and inner) or heads % groups or inner % heads:
            raise ModelError(
                f"{file.path}: {arch}.ssm: {inner} elements cannot be divided into {heads} heads that share "
                f"{groups} groups"
            )
        return cls(
            heads=heads,
            head_size=inner // heads,
            groups=groups,
            state_size=file.get(f"{arch}.ssm.state_size", int),
            taps=file.get(f"{arch}.ssm.conv_kernel", int),
        )

    def kind(self) -> Recurrent:
        """Return the kind of such a layer, which keeps of earlier tokens what a gated delta net keeps."""
        return gated_delta(
            key_heads=self.groups,
            value_heads=self.heads,
            key_size=self.state_size,
            value_size=self.head_size,
            taps=self.taps,
        )

    @property
    def inner(self) -> int:
        return self.heads * self.head_size

    @property
    def shared(self) -> int:
        """The elements of B or C of all groups."""
        return self.groups * self.state_size


class _Convolution(Module):
    def __init__(self, channels: int, taps: int) -> None:
        self.weight = Weight((channels, taps), host=True)
        self.bias = Weight((channels,), optional=True)


class _Bias(Module):
    def __init__(self, size: int) -> None:
        self.bias = Weight((size,))


class GroupNorm(Module):
    """The RMS norm of each group of x (n, groups · size), with separate weights: (groups, size) in files."""

    def __init__(self, groups: int, size: int, eps: float, optional: bool = False) -> None:
        self._shape, self._eps = (groups, size), eps
        self.weight = Weight((groups * size,), optional, stored=(groups, size))

    def __call__(self, x: Tensor) -> Tensor:
        groups, size = self._shape
        x = ops.rms_norm(x.reshape(groups, size), None, self._eps)
        return ops.multiply_vector(x.reshape(groups * size), self.weight)


class Mamba2(Module):
    """A layer that computes out(norm(ssd(C, B, x) · silu(z))) after a convolution of x, B and C.

    Files may lack the norm, and the biases of the convolution and the matrices.
    """

    inline = True

    def __init__(self, hidden_size: int, eps: float, config: Mamba2Config) -> None:
        self._config = c = config
        channels = c.inner + 2 * c.shared
        self.ssm_in = Linear(hidden_size, c.inner + channels + c.heads)
        self.ssm_conv1d = _Convolution(channels, c.taps)
        self.ssm_dt = _Bias(c.heads)
        self.ssm_a = Weight((c.heads,), stored=(c.heads, 1))
        self.ssm_d = Weight((c.heads,), host=True, stored=(c.heads, 1))
        self.ssm_norm = GroupNorm(c.groups, c.inner // c.groups, eps, optional=True)
        self.ssm_out = Linear(c.inner, hidden_size)

    def __call__(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        c, shared = self._config, self._config.shared
        parts = self.ssm_in(x)
        z = ops.slice(parts, 0, c.inner)
        dt = ops.softplus(
            ops.add_vector(ops.slice(parts, 2 * c.inner + 2 * shared, c.heads), self.ssm_dt.bias)
        )
        xbc = self._convolved(ops.slice(parts, c.inner, c.inner + 2 * shared), cache)
        x = ops.slice(xbc, 0, c.inner).reshape(c.heads, c.head_size)
        b, c_ = (
            ops.slice(xbc, c.inner + i * shared, shared).reshape(c.groups, c.state_size) for i in range(2)
        )
        log_decay = ops.multiply_vector(dt, self.ssm_a)
        y = ops.ssd(
            c_, b, x, log_decay, dt, self.ssm_d.elements, cache.states[1], cache.rows[1:], cache.segments
        )
        y = ops.swiglu(z, y.reshape(c.inner))
        return self.ssm_out(self.ssm_norm(y) if self.ssm_norm.weight.is_present else y)

    def _convolved(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        filter = self.ssm_conv1d.weight.elements
        x = ops.chunked_conv(x, filter, cache.states[0], cache.rows[0], cache.segments)
        bias = self.ssm_conv1d.bias
        return ops.silu(ops.add_vector(x, bias) if bias.is_present else x)
