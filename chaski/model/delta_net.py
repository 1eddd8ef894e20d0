"""The gated delta net (Yang et al. 2024, https://arxiv.org/abs/2412.06464): linear attention with a state."""

from __future__ import annotations

from collections.abc import Set

from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent, RecurrentLayer, gated_delta
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import ConvKernel, Linear, Module, RMSNorm

__all__ = ["DeltaConfig", "GatedDeltaNet"]

_LENGTH_EPS = 1e-6  # the same in all models, regardless of the epsilon of their norms


class DeltaConfig(Struct, frozen=True):
    """Sizes of the gated delta nets. Value heads share key heads.

    tiled  value head h uses key head h modulo their number; otherwise consecutive value heads share one
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int
    tiled: bool

    @classmethod
    def read(cls, file: GGUFFile) -> DeltaConfig:
        """Read the sizes. Raises ModelError for numbers of heads that do not fit each other."""
        arch = file.architecture
        key_heads = file.get(f"{arch}.ssm.group_count", int)
        value_heads = file.get(f"{arch}.ssm.time_step_rank", int)
        inner = file.get(f"{arch}.ssm.inner_size", int)
        if not (key_heads and value_heads and inner) or value_heads % key_heads or inner % value_heads:
            raise ModelError(
                f"{file.path}: {arch}.ssm: {inner} elements cannot be divided into {value_heads} value heads "
                f"that share {key_heads} key heads"
            )
        # Only Qwen 3 Next files contain one matrix for beta and alpha, and the head order of its checkpoints.
        is_grouped = any(name.endswith(".ssm_ba.weight") for name in file.tensors)
        return cls(
            key_heads=key_heads,
            value_heads=value_heads,
            key_size=file.get(f"{arch}.ssm.state_size", int),
            value_size=inner // value_heads,
            taps=file.get(f"{arch}.ssm.conv_kernel", int),
            tiled=file.get(f"{arch}.ssm.v_head_reordered", bool, not is_grouped),
        )

    def kind(self) -> Recurrent:
        """Return the kind of such a layer: the state of earlier tokens that it keeps."""
        return gated_delta(
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_size=self.key_size,
            value_size=self.value_size,
            taps=self.taps,
        )

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_size


class _Bias(Module):
    def __init__(self, size: int) -> None:
        self.bias = Weight((size,))


class GatedDeltaNet(Module):
    """A layer that computes out(norm(delta(q, k, v)) · silu(z)) after a convolution of q, k and v.

    `tensors`: names of the block's tensors in the file. Qwen 3 Next files contain one matrix for beta and
    alpha, and older ones also one matrix for q, k, v and z; both store the rows of a key head side by side.
    """

    inline = True

    def __init__(self, hidden_size: int, eps: float, config: DeltaConfig, tensors: Set[str]) -> None:
        self._config = c = config
        self._has_qkvz, self._has_ba = (f"{name}.weight" in tensors for name in ("ssm_in", "ssm_ba"))
        channels = 2 * c.key_width + c.value_width
        if self._has_qkvz:
            self.ssm_in = Linear(hidden_size, channels + c.value_width)
        else:
            self.attn_qkv = Linear(hidden_size, channels)
            self.attn_gate = Linear(hidden_size, c.value_width)
        if self._has_ba:
            self.ssm_ba = Linear(hidden_size, 2 * c.value_heads)
        else:
            self.ssm_beta = Linear(hidden_size, c.value_heads)
            self.ssm_alpha = Linear(hidden_size, c.value_heads)
        self.ssm_conv1d = ConvKernel(channels, c.taps)
        self.ssm_dt = _Bias(c.value_heads)
        self.ssm_a = Weight((c.value_heads,))
        self.ssm_norm = RMSNorm(c.value_size, eps)
        self.ssm_out = Linear(c.value_width, hidden_size)

    def __call__(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        c = self._config
        qkv, z = self._qkv_and_z(x)
        beta, alpha = self._beta_and_alpha(x)
        filter, segments = self.ssm_conv1d.weight.elements, cache.segments
        qkv = ops.silu(ops.chunked_conv(qkv, filter, cache.states[0], cache.rows[0], segments))
        q = ops.slice(qkv, 0, c.key_width).reshape(c.key_heads, c.key_size)
        k = ops.slice(qkv, c.key_width, c.key_width).reshape(c.key_heads, c.key_size)
        v = ops.slice(qkv, 2 * c.key_width, c.value_width).reshape(c.value_heads, c.value_size)
        q, k = ops.l2_norm(q, _LENGTH_EPS) * c.key_size**-0.5, ops.l2_norm(k, _LENGTH_EPS)
        log_decay = ops.multiply_vector(ops.softplus(ops.add_vector(alpha, self.ssm_dt.bias)), self.ssm_a)
        states, rows = cache.states[1], cache.rows[1:]
        y = ops.gated_delta(q, k, v, log_decay, ops.sigmoid(beta), states, rows, segments, tiled=c.tiled)
        y = self.gated(z.reshape(c.value_heads, c.value_size), self.ssm_norm(y))
        return self.ssm_out(y.reshape(c.value_width))

    def gated(self, gate: Tensor, y: Tensor) -> Tensor:
        """Return the normalized result y, multiplied by the function of its gate."""
        return ops.swiglu(gate, y)

    def _qkv_and_z(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self._has_qkvz:
            return self.attn_qkv(x), self.attn_gate(x)
        c, size = self._config, self._config.value_width // self._config.key_heads
        heads = self.ssm_in(x).reshape(c.key_heads, 2 * c.key_size + 2 * size)
        q = ops.slice(heads, 0, c.key_size).reshape(c.key_width)
        k = ops.slice(heads, c.key_size, c.key_size).reshape(c.key_width)
        v, z = (ops.slice(heads, 2 * c.key_size + i * size, size).reshape(c.value_width) for i in range(2))
        return ops.concat([(q, 0, 1), (k, c.key_width, 1), (v, 2 * c.key_width, 1)]), z

    def _beta_and_alpha(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self._has_ba:
            return self.ssm_beta(x), self.ssm_alpha(x)
        c, count = self._config, self._config.value_heads // self._config.key_heads
        heads = self.ssm_ba(x).reshape(c.key_heads, 2 * count)
        beta, alpha = (ops.slice(heads, i * count, count).reshape(c.value_heads) for i in range(2))
        return beta, alpha
