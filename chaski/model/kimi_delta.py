"""Kimi Delta Attention (Kimi Team 2025, https://arxiv.org/abs/2510.26692): a delta net with many decays."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Checkpoints, Recurrent, RecurrentLayer, StateShape, matrix_states
from chaski.ml import ops
from chaski.ml.graph import KVBuffer, Tensor, Weight
from chaski.ml.nn import Linear, Module, RMSNorm

__all__ = ["BoundedKimiDelta", "KimiDelta", "KimiDeltaConfig"]

_LENGTH_EPS = 1e-6  # of queries and keys, regardless of the epsilon of the norms


class KimiDeltaConfig(Struct, frozen=True):
    """Sizes of the layers. Queries, keys and values have the same heads."""

    heads: int
    size: int
    taps: int

    @classmethod
    def read(cls, file: GGUFFile, heads: int) -> KimiDeltaConfig:
        arch = file.architecture
        return cls(heads, file.get(f"{arch}.kda.head_dim", int), file.get(f"{arch}.ssm.conv_kernel", int))

    @property
    def width(self) -> int:
        return self.heads * self.size

    def kind(self) -> Recurrent:
        """Return the kind of such a layer: last rows of three convolutions, and a matrix for each head."""
        convolution = StateShape(self.taps - 1, self.width)
        matrices = matrix_states(self.heads, self.size, self.size)
        return Recurrent((*(convolution,) * 3, matrices), Checkpoints(count=4), states_kept=4)


class _Filter(Module):
    """The filters of a convolution. Files have the dimensions of another library's convolution."""

    def __init__(self, channels: int, taps: int) -> None:
        self.weight = Weight((channels, taps), host=True, stored=(1, channels, 1, taps))

    def __call__(self, x: Tensor, states: KVBuffer, segments: Tensor) -> Tensor:
        return ops.silu(ops.short_conv(x, self.weight.elements, states, segments))


class _Bias(Module):
    def __init__(self, size: int) -> None:
        self.bias = Weight((size,))


class KimiDelta(Module):
    """A layer that computes out(norm(delta(q, k, v)) · sigmoid(gate)).

    Each element of a key has its own decay, exp(a softplus(f + dt)), from two matrices with few rows between
    them, as the gate. Variants override these parts.
    """

    inline = True

    def __init__(self, hidden_size: int, eps: float, config: KimiDeltaConfig) -> None:
        self._config = c = config
        self.attn_q = Linear(hidden_size, c.width)
        self.attn_k = Linear(hidden_size, c.width)
        self.attn_v = Linear(hidden_size, c.width)
        self.ssm_conv1d_q = _Filter(c.width, c.taps)
        self.ssm_conv1d_k = _Filter(c.width, c.taps)
        self.ssm_conv1d_v = _Filter(c.width, c.taps)
        self.ssm_dt = _Bias(c.width)
        self.ssm_a = Weight((c.heads,), host=True, stored=self.stored_decays())
        self.ssm_beta = Linear(hidden_size, c.heads)
        self.add_forgetting(hidden_size)
        self.add_gate(hidden_size)
        self.ssm_norm = RMSNorm(c.size, eps)
        self.attn_output = Linear(c.width, hidden_size)

    def __call__(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        c, segments = self._config, cache.segments
        *convolutions, states = cache.states
        parts = (
            (self.attn_q, self.ssm_conv1d_q),
            (self.attn_k, self.ssm_conv1d_k),
            (self.attn_v, self.ssm_conv1d_v),
        )
        q, k, v = (
            filter(matrix(x), kept, segments).reshape(c.heads, c.size)
            for (matrix, filter), kept in zip(parts, convolutions, strict=True)
        )
        q, k = ops.l2_norm(q, _LENGTH_EPS) * c.size**-0.5, ops.l2_norm(k, _LENGTH_EPS)
        decay, beta = self._decay(x), ops.sigmoid(self.ssm_beta(x))
        # The state takes beta (v - what it has for k once it has decayed).
        taken = ops.scale_rows(k, beta)
        correction = (ops.multiply(k, decay), taken * -1.0)
        y = ops.generalized_delta(q, decay, taken, v, states, segments, correction)
        gate = self.gate(x).reshape(c.heads, c.size)
        y = ops.multiply(self.ssm_norm(y), ops.sigmoid(gate))
        return self.attn_output(y.reshape(c.width))

    def _decay(self, x: Tensor) -> Tensor:
        """Return the factors of the rows of each head's state (n, heads, size)."""
        c = self._config
        step = ops.add_vector(self.forgetting(x), self.ssm_dt.bias)
        return ops.exp(self.log_decay(step.reshape(c.heads, c.size)))

    def log_decay(self, step: Tensor) -> Tensor:
        """Return the logarithms of the factors from `forgetting` with its bias (n, heads, size)."""
        return ops.scale_heads(ops.softplus(step), self.ssm_a.elements)

    def stored_decays(self) -> tuple[int, ...]:
        """Return the shape of the decays of heads in files."""
        return 1, 1, self._config.heads, 1

    def add_forgetting(self, hidden_size: int) -> None:
        """Declare the matrices of `forgetting`."""
        self.ssm_f_a = Linear(hidden_size, self._config.size)
        self.ssm_f_b = Linear(self._config.size, self._config.width)

    def forgetting(self, x: Tensor) -> Tensor:
        """Return what the decays depend on (n, width)."""
        return self.ssm_f_b(self.ssm_f_a(x))

    def add_gate(self, hidden_size: int) -> None:
        """Declare the matrices of `gate`."""
        self.ssm_g_a = Linear(hidden_size, self._config.size)
        self.ssm_g_b = Linear(self._config.size, self._config.width)

    def gate(self, x: Tensor) -> Tensor:
        """Return the gates of the results, before their sigmoids (n, width)."""
        return self.ssm_g_b(self.ssm_g_a(x))


class BoundedKimiDelta(KimiDelta):
    """The same with decays exp(bound · sigmoid(a (f + dt))), which are never lower than exp(bound).

    `bound` is negative. The signs of the stored `a` do not matter: files have one or the other.
    """

    def __init__(self, hidden_size: int, eps: float, config: KimiDeltaConfig, bound: float) -> None:
        super().__init__(hidden_size, eps, config)
        self._bound = bound

    def log_decay(self, step: Tensor) -> Tensor:
        return ops.sigmoid(ops.scale_heads(step, np.abs(self.ssm_a.elements))) * self._bound
