"""PLaMo 2 (Preferred Networks 2025): most layers are Mamba 2 with norms of B, C and the time step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import (
    AttentionSpan,
    Causal,
    LayerCache,
    LayerKind,
    Recurrent,
    RecurrentLayer,
    gated_delta,
)
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import ConvKernel, DecoderLayer, FusedGLU, Linear, Module, attention
from chaski.model.arch import llama, plamo3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.hybrid import HybridModel
from chaski.model.state_space import GroupNorm, Mamba2Config

ARCHITECTURE = Architecture(
    "plamo2",
    "PLaMo 2 and 2.1, PLaMo Translate",
    notes="Files of llama.cpp lack the window of attention, which chaski's converter writes.",
    reads=("attention.sliding_window",),
    fixed={"attention.causal": (True,)},
)

_SMALLEST_RANK = 64


class Attention(llama.Attention):
    """Attention with a norm of each head of queries and keys, with separate weights for each head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = GroupNorm(config.num_heads, config.head_size, config.eps)
        self.attn_k_norm = GroupNorm(config.num_kv_heads, config.head_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x)).reshape(c.num_heads, c.head_size)
        k = self.attn_k_norm(self.attn_k(x)).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        attended = attention(ops.rope(q, rope), ops.rope(k, rope), v, cache, scale=c.head_size**-0.5)
        return self.attn_output(attended)


class Mixer(Module):
    """Mamba 2 whose B, C and time step follow from the convolved x, as in Mamba. All heads share B and C."""

    inline = True

    def __init__(self, size: int, eps: float, config: Mamba2Config) -> None:
        c = self._config = config
        self._eps = eps
        rank = self._rank = max(_SMALLEST_RANK, size // 16)
        self.ssm_in = Linear(size, 2 * c.inner)
        self.ssm_conv1d = ConvKernel(c.inner, c.taps)
        self.ssm_x = Linear(c.inner, rank + 2 * c.state_size)
        self.ssm_b_norm = Weight((c.state_size,))  # these three without `weight` after their names
        self.ssm_c_norm = Weight((c.state_size,))
        self.ssm_dt_norm = Weight((rank,))
        self.ssm_dt = Linear(rank, c.heads)
        self.ssm_a = Weight((c.heads,))
        self.ssm_d = Weight((c.heads,), host=True)
        self.ssm_out = Linear(c.inner, size)

    def __call__(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        c, size, segments = self._config, self._config.state_size, cache.segments
        heads = self.ssm_in(x).reshape(c.heads, 2 * c.head_size)
        z, x = (ops.slice(heads, i * c.head_size, c.head_size).reshape(c.inner) for i in range(2))
        filter = self.ssm_conv1d.weight.elements
        x = ops.silu(ops.chunked_conv(x, filter, cache.states[0], cache.rows[0], segments))
        selected = self.ssm_x(x)
        b = ops.rms_norm(ops.slice(selected, 0, size), self.ssm_b_norm, self._eps)
        c_ = ops.rms_norm(ops.slice(selected, size, size), self.ssm_c_norm, self._eps)
        dt = ops.rms_norm(ops.slice(selected, 2 * size, self._rank), self.ssm_dt_norm, self._eps)
        dt = ops.softplus(self.ssm_dt(dt))
        y = ops.ssd(
            c_.reshape(1, size),
            b.reshape(1, size),
            x.reshape(c.heads, c.head_size),
            ops.multiply_vector(dt, self.ssm_a),
            dt,
            self.ssm_d.elements,
            cache.states[1],
            cache.rows[1:],
            segments,
        )
        return self.ssm_out(ops.swiglu(z, y.reshape(c.inner)))


class Model(HybridModel):
    def layer(self, file: GGUFFile) -> plamo3.Layer:
        return plamo3.Layer(self.config, Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> FusedGLU:
        return FusedGLU(self.config.hidden_size, self.config.ffn_size)

    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, mamba = self.config, Mamba2Config.read(file, groups=1)
        kind = gated_delta(
            key_heads=mamba.groups,
            value_heads=mamba.heads,
            key_size=mamba.state_size,
            value_size=mamba.head_size,
            taps=mamba.taps,
            channels=mamba.inner,
        )
        return lambda: Mixer(c.hidden_size, c.eps, mamba), kind

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        self._window = file.get(f"{file.architecture}.attention.sliding_window", int, 0)
        return super().layers(file)

    def layer_kinds(self) -> Sequence[LayerKind]:
        # A token sees the window, and itself.
        span = AttentionSpan(window=self._window + 1) if self._window else AttentionSpan()
        attending = Causal(self.config.kv_shape(self.rope()), span)
        return [attending if isinstance(kind, Causal) else kind for kind in super().layer_kinds()]

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
