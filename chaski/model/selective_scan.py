"""Layers of Mamba (Gu and Dao 2023, https://arxiv.org/abs/2312.00752): selective scans."""

from __future__ import annotations

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent, RecurrentLayer, StateShape
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import Linear, Module

__all__ = ["Mamba", "MambaConfig"]


class MambaConfig(Struct, frozen=True):
    """Sizes of Mamba layers."""

    inner: int
    state_size: int
    rank: int
    taps: int

    @classmethod
    def read(cls, file: GGUFFile) -> MambaConfig:
        names = ("inner_size", "state_size", "time_step_rank", "conv_kernel")
        return cls(*(file.get(f"{file.architecture}.ssm.{name}", int) for name in names))

    def kind(self) -> Recurrent:
        """Return the kind of such a layer: the last rows of its convolution, and the state."""
        return Recurrent((StateShape(self.taps - 1, self.inner), StateShape(self.state_size, self.inner)))


class _Convolution(Module):
    def __init__(self, channels: int, taps: int) -> None:
        self.weight = Weight((channels, taps), host=True)
        self.bias = Weight((channels,), optional=True)


class _Norm(Module):
    """A norm with a weight that some models lack; `always`: they are normalized then, too."""

    def __init__(self, size: int, eps: float, always: bool) -> None:
        self._eps, self._always = eps, always
        self.weight = Weight((size,), optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight.is_present:
            return ops.rms_norm(x, self.weight, self._eps)
        return ops.rms_norm(x, None, self._eps) if self._always else x


class Mamba(Module):
    """A layer that computes out((scan(x) + D x) · silu(z)) after a convolution of x.

    normalizes: the time step, B and C are normalized without weights (Falcon Mamba). Files with weights for
    these norms (Jamba) have them regardless.
    """

    inline = True

    def __init__(self, hidden_size: int, eps: float, config: MambaConfig, normalizes: bool = False) -> None:
        self._config = c = config
        self.ssm_in = Linear(hidden_size, 2 * c.inner)
        self.ssm_conv1d = _Convolution(c.inner, c.taps)
        self.ssm_x = Linear(c.inner, c.rank + 2 * c.state_size)
        self.ssm_dt = Linear(c.rank, c.inner)
        self.ssm_a = Weight((c.inner, c.state_size), host=True)
        self.ssm_d = Weight((c.inner,))
        self.ssm_dt_norm = _Norm(c.rank, eps, normalizes)
        self.ssm_b_norm = _Norm(c.state_size, eps, normalizes)
        self.ssm_c_norm = _Norm(c.state_size, eps, normalizes)
        self.ssm_out = Linear(c.inner, hidden_size)

    def __call__(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        c, segments = self._config, cache.segments
        parts = self.ssm_in(x)
        x, z = (ops.slice(parts, i * c.inner, c.inner) for i in range(2))
        x = ops.short_conv(x, self.ssm_conv1d.weight.elements, cache.states[0], segments)
        bias = self.ssm_conv1d.bias
        x = ops.silu(ops.add_vector(x, bias) if bias.is_present else x)
        selected = self.ssm_x(x)
        dt = self.ssm_dt_norm(ops.slice(selected, 0, c.rank))
        b = self.ssm_b_norm(ops.slice(selected, c.rank, c.state_size))
        c_ = self.ssm_c_norm(ops.slice(selected, c.rank + c.state_size, c.state_size))
        dt = ops.softplus(self.ssm_dt(dt))
        y = ops.selective_scan(x, dt, b, c_, self.ssm_a.elements, cache.states[1], segments)
        y = y + ops.multiply_vector(x, self.ssm_d)
        return self.ssm_out(ops.swiglu(z, y))
