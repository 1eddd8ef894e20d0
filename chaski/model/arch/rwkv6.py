"""RWKV 6 (Peng et al. 2024, https://arxiv.org/abs/2404.05892): decays that depend on the token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, RecurrentLayer
from chaski.ml import ops
from chaski.ml.graph import KVBuffer, Tensor, Weight
from chaski.ml.nn import Joined, LayerNorm, Linear, Module, PlainLayerNorm, output_rows
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.rwkv import Lerp, Vector, rwkv_kind

ARCHITECTURE = Architecture(
    "rwkv6",
    "RWKV 6 World (Finch)",
    reads=("rescale_every_n_layers",),
    fixed={"attention.causal": (True,)},
)

_GROUP_EPS = 64e-5
_MIXTURES = "wkvrg"  # of decays, keys, values, receptances and gates


class Sizes(Struct, frozen=True):
    """Sizes of the layers: of rows, of a head, of all keys, and between the small matrices of two kinds."""

    hidden: int
    head: int
    keys: int
    mix: int
    decay: int

    @classmethod
    def read(cls, file: GGUFFile, config: DecoderConfig) -> Sizes:
        arch, hidden = file.architecture, config.hidden_size
        head = file.get(f"{arch}.wkv.head_size", int)
        kv_heads = file.get(f"{arch}.attention.head_count_kv", int, 0)
        return cls(
            hidden=hidden,
            head=head,
            keys=kv_heads * head or hidden,
            mix=file.get(f"{arch}.time_mix_extra_dim", int),
            decay=file.get(f"{arch}.time_decay_extra_dim", int),
        )

    @property
    def heads(self) -> int:
        return self.hidden // self.head


class TimeMix(Module):
    """Linear attention whose state decays by numbers of the token."""

    inline = True
    joined = Joined("time_mix_w2", tuple(f"time_mix_w2_{name}" for name in _MIXTURES))

    def __init__(self, c: Sizes) -> None:
        self._sizes = c
        count = len(_MIXTURES)
        self.time_mix_lerp_x = Lerp(1, c.hidden, (c.hidden,))
        self.time_mix_lerp_fused = Lerp(count, c.hidden, (count, 1, 1, c.hidden))
        self.time_mix_w1 = Linear(c.hidden, count * c.mix)
        for name in _MIXTURES:
            setattr(self, f"time_mix_w2_{name}", Linear(c.mix, c.hidden))
        self.time_mix_decay = Vector(c.hidden)
        self.time_mix_decay_w1 = Linear(c.hidden, c.decay)
        self.time_mix_decay_w2 = Linear(c.decay, c.hidden)
        self.time_mix_key = Linear(c.hidden, c.keys)
        self.time_mix_value = Linear(c.hidden, c.keys)
        self.time_mix_receptance = Linear(c.hidden, c.hidden)
        self.time_mix_gate = Linear(c.hidden, c.hidden)
        self.time_mix_output = Linear(c.hidden, c.hidden)

    def __call__(self, x: Tensor, cache: RecurrentLayer, previous: KVBuffer) -> Tensor:
        """Return the output for rows x (n, size)."""
        xw, xk, xv, xr, xg = self._mixtures(x, previous, cache.segments)
        decay = self.time_mix_decay_w2(_tanh(self.time_mix_decay_w1(xw)))
        decay = ops.exp(ops.exp(ops.add_vector(decay, self.time_mix_decay.weight)) * -1.0)
        r, k, v = self.time_mix_receptance(xr), self.time_mix_key(xk), self.time_mix_value(xv)
        y = ops.multiply(self.read(r, decay, k, v, cache), self.gate(self.time_mix_gate(xg)))
        return self.time_mix_output(y)

    def read(self, r: Tensor, decay: Tensor, k: Tensor, v: Tensor, cache: RecurrentLayer) -> Tensor:
        """Return what the receptances r (n, size) read from the state, (n, size)."""
        raise NotImplementedError

    def gate(self, x: Tensor) -> Tensor:
        """Return the factors of the result."""
        raise NotImplementedError

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(self._sizes.heads, self._sizes.head)

    def _mixtures(self, x: Tensor, previous: KVBuffer, segments: Tensor) -> list[Tensor]:
        """Return mixtures of rows x (n, size) and the rows before them, whose shares depend on the token."""
        change = _taps(x, (1.0, -1.0), previous, segments)
        (mixed,) = self.time_mix_lerp_x(x, previous, segments)
        fixed = self.time_mix_lerp_fused(x, previous, segments)
        inner, size = _tanh(self.time_mix_w1(mixed)), self._sizes.mix
        return [
            each
            + ops.multiply(change, getattr(self, f"time_mix_w2_{name}")(ops.slice(inner, i * size, size)))
            for i, (name, each) in enumerate(zip(_MIXTURES, fixed, strict=True))
        ]


def _tanh(x: Tensor) -> Tensor:
    return ops.softcap(x, cap=1.0)


def _taps(x: Tensor, taps: tuple[float, float], previous: KVBuffer, segments: Tensor) -> Tensor:
    """Return the sum of the row before each row of x (n, size) and that row, times one number each."""
    (size,) = x.shape[1:]
    assert isinstance(size, int)
    return ops.short_conv(x, np.tile(np.array(taps, np.float32), (size, 1)), previous, segments)


class OwnTimeMix(TimeMix):
    """RWKV 6's: the state that a token reads does not have the token's own value yet.

    It is the state after the token before, so the keys, values and decays that enter it are those of that
    token. The token's own value is added, weighted by `time_mix_first`.
    """

    def __init__(self, c: Sizes) -> None:
        super().__init__(c)
        self.time_mix_first = HeadVector(c.heads, c.head)
        self.time_mix_ln = LayerNorm(c.hidden, _GROUP_EPS)
        self._norm = PlainLayerNorm(c.head, _GROUP_EPS)

    def read(self, r: Tensor, decay: Tensor, k: Tensor, v: Tensor, cache: RecurrentLayer) -> Tensor:
        hidden, (states, *delayed) = self._sizes.hidden, (cache.states[0], *cache.states[3:])
        w, k_before, v_before = (
            self.heads(_taps(each, (1.0, 0.0), rows, cache.segments))
            for each, rows in zip((decay, k, v), delayed, strict=True)
        )
        y = ops.generalized_delta(self.heads(r), w, k_before, v_before, states, cache.segments)
        products = ops.multiply_vector(ops.multiply(r, k), self.time_mix_first.weight)
        y = y + ops.scale_rows(self.heads(v), ops.head_sums(self.heads(products)))
        y = self._norm(y).reshape(hidden)
        return ops.add_vector(ops.multiply_vector(y, self.time_mix_ln.weight), self.time_mix_ln.bias)

    def gate(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class HeadVector(Module):
    """A vector for all heads, (heads, size) in files."""

    def __init__(self, heads: int, size: int) -> None:
        self.weight = Weight((heads * size,), stored=(heads, size))


class ChannelMix(Module):
    """The feed-forward block, which reads mixtures of a token's row and the one before it."""

    inline = True

    def __init__(self, size: int, hidden: int) -> None:
        self.channel_mix_lerp_k = Lerp(1, size, (size,))
        self.channel_mix_lerp_r = Lerp(1, size, (size,))
        self.channel_mix_key = Linear(size, hidden)
        self.channel_mix_value = Linear(hidden, size)
        self.channel_mix_receptance = Linear(size, size)

    def mixtures(self, x: Tensor, previous: KVBuffer, segments: Tensor) -> list[Tensor]:
        """Return the rows that keys and receptances read."""
        lerps = (self.channel_mix_lerp_k, self.channel_mix_lerp_r)
        return [each for lerp in lerps for each in lerp(x, previous, segments)]

    def __call__(self, xk: Tensor, xr: Tensor) -> Tensor:
        y = self.channel_mix_value(ops.squared_relu(self.channel_mix_key(xk)))
        return ops.multiply(ops.sigmoid(self.channel_mix_receptance(xr)), y)


class Layer(Module):
    """`factor` multiplies the output: checkpoints in float16 halve their states every few layers."""

    def __init__(self, config: DecoderConfig, sizes: Sizes, factor: float) -> None:
        self.attn_norm = LayerNorm(config.hidden_size, config.eps)
        self.attn = OwnTimeMix(sizes)
        self.attn_norm_2 = LayerNorm(config.hidden_size, config.eps)
        self.ffn = ChannelMix(config.hidden_size, config.ffn_size)
        self._factor = factor

    def __call__(self, x: Tensor, cache: RecurrentLayer, outputs: Tensor | None) -> Tensor:
        _, before, after, *_ = cache.states
        x = x + self.attn(self.attn_norm(x), cache, before)
        mixed = self.ffn.mixtures(self.attn_norm_2(x), after, cache.segments)
        xk, xr, x = output_rows(outputs, *mixed, x)
        x = x + self.ffn(xk, xr)
        return x if self._factor == 1 else x * self._factor


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, eps="layer_norm_epsilon", num_heads=1)
        super().__init__(config)
        self.token_embd_norm = LayerNorm(config.hidden_size, config.eps)
        sizes = Sizes.read(file, config)
        self._kind = rwkv_kind(file, config.hidden_size, shifts=5)
        every = file.get(f"{file.architecture}.rescale_every_n_layers", int, 0)
        self.blk = [
            Layer(config, sizes, 0.5 if every and layer % every == 0 else 1.0)
            for layer in range(1, config.num_layers + 1)
        ]

    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self._kind] * self.config.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[RecurrentLayer]) -> Tensor:
        x = self.token_embd_norm(self.token_embd(inputs.tokens))
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
