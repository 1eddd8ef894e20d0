"""RWKV 7 (Peng et al. 2025, https://arxiv.org/abs/2503.14456): a delta rule instead of attention."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, RecurrentLayer
from chaski.ml import ops
from chaski.ml.graph import KVBuffer, Tensor
from chaski.ml.nn import LayerNorm, Linear, Module, PlainLayerNorm, output_rows
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.rwkv import Lerp, Vector, rwkv_kind

ARCHITECTURE = Architecture(
    "rwkv7",
    "RWKV 7 World, RWKV 7 G1",
    fixed={"attention.causal": (True,)},
)

_LOG_DECAY = -0.606531  # the smallest one of a token: -exp(-1/2)
_GROUP_EPS, _LENGTH_EPS = 64e-5, 1e-24


class Sizes(Struct, frozen=True):
    """Sizes of the layers: of rows, of a head, and between the two small matrices of each kind.

    gate: 0 for layers without gates.
    """

    hidden: int
    head: int
    decay: int
    rate: int
    value: int
    gate: int

    @classmethod
    def read(cls, file: GGUFFile, hidden: int) -> Sizes:
        arch = file.architecture
        ranks = f"{arch}.attention.{{}}_lora_rank"
        return cls(
            hidden=hidden,
            head=file.get(f"{arch}.wkv.head_size", int),
            decay=file.get(ranks.format("decay"), int),
            rate=file.get(ranks.format("iclr"), int),
            value=file.get(ranks.format("value_residual_mix"), int),
            gate=file.get(ranks.format("gate"), int, 0),
        )

    @property
    def heads(self) -> int:
        return self.hidden // self.head


class TimeMix(Module):
    """The delta rule.

    is_first: the layer's values are part of the values of all other layers. Files have matrices for the part
    of such values in the first layer, too, which have no use there.
    may_lack_norm: files may lack the norm of the result.
    """

    inline = True

    def __init__(self, c: Sizes, is_first: bool, may_lack_norm: bool = False) -> None:
        self._sizes = c
        mixtures = 6 if c.gate else 5
        self.time_mix_lerp_fused = Lerp(mixtures, c.hidden, (mixtures, 1, 1, c.hidden))
        self.time_mix_w0 = Vector(c.hidden)
        self.time_mix_w1 = Linear(c.hidden, c.decay)
        self.time_mix_w2 = Linear(c.decay, c.hidden)
        self.time_mix_a0 = Vector(c.hidden)
        self.time_mix_a1 = Linear(c.hidden, c.rate)
        self.time_mix_a2 = Linear(c.rate, c.hidden)
        rank = c.rate if is_first else c.value
        self.time_mix_v0 = Vector(c.hidden)
        self.time_mix_v1 = Linear(c.hidden, rank)
        self.time_mix_v2 = Linear(rank, c.hidden)
        if c.gate:
            self.time_mix_g1 = Linear(c.hidden, c.gate)
            self.time_mix_g2 = Linear(c.gate, c.hidden)
        self.time_mix_k_k = Vector(c.hidden)
        self.time_mix_k_a = Vector(c.hidden)
        self.time_mix_r_k = Vector(c.hidden)
        self.time_mix_receptance = Linear(c.hidden, c.hidden)
        self.time_mix_key = Linear(c.hidden, c.hidden)
        self.time_mix_value = Linear(c.hidden, c.hidden)
        self.time_mix_ln = LayerNorm(c.hidden, _GROUP_EPS, optional=may_lack_norm)
        self.time_mix_output = Linear(c.hidden, c.hidden)
        self._norm = PlainLayerNorm(c.head, _GROUP_EPS)

    def __call__(
        self, x: Tensor, first: Tensor | None, cache: RecurrentLayer, previous: KVBuffer
    ) -> tuple[Tensor, Tensor]:
        """Return the output for rows x (n, size), and the values of the first layer, `first` in others."""
        segments = cache.segments
        xr, xw, xk, xv, xa, *xg = self.time_mix_lerp_fused(x, previous, segments)
        r, k = self._heads(self.time_mix_receptance(xr)), self.time_mix_key(xk)
        decay = self.time_mix_w2(ops.softcap(self.time_mix_w1(xw), cap=1.0))  # the hyperbolic tangent
        decay = ops.exp(ops.sigmoid(ops.add_vector(decay, self.time_mix_w0.weight)) * _LOG_DECAY)
        v = self._values(xv, first)
        rate = ops.sigmoid(ops.add_vector(self.time_mix_a2(self.time_mix_a1(xa)), self.time_mix_a0.weight))
        removed = ops.l2_norm(self._heads(ops.multiply_vector(k, self.time_mix_k_k.weight)), _LENGTH_EPS)
        taken = ops.multiply_vector(k, self.time_mix_k_a.weight)
        k = self._heads(k + taken * -1.0 + ops.multiply(rate, taken))
        correction = (removed * -1.0, ops.multiply(removed, self._heads(rate)))
        values = self._heads(v)
        y = ops.generalized_delta(r, self._heads(decay), k, values, cache.states[0], segments, correction)
        y = self._normalized(y) + self._bonus(r, k, values)
        for mixture in xg:
            y = ops.multiply(y, self.time_mix_g2(ops.sigmoid(self.time_mix_g1(mixture))))
        return self.time_mix_output(y), v if first is None else first

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(self._sizes.heads, self._sizes.head)

    def _values(self, x: Tensor, first: Tensor | None) -> Tensor:
        """Return the values (n, size), mixed with those of the first layer."""
        v = self.time_mix_value(x)
        if first is None:
            return v
        share = ops.add_vector(self.time_mix_v2(self.time_mix_v1(x)), self.time_mix_v0.weight)
        return v + ops.multiply(first + v * -1.0, ops.sigmoid(share))

    def _normalized(self, y: Tensor) -> Tensor:
        """Return a layer norm of each head, with weights of their own (n, size), if the file has one."""
        ln = self.time_mix_ln
        if not ln.weight.is_present:
            return y.reshape(self._sizes.hidden)
        y = self._norm(y).reshape(self._sizes.hidden)
        return ops.add_vector(ops.multiply_vector(y, ln.weight), ln.bias)

    def _bonus(self, r: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what a token reads of its own value (n, size)."""
        hidden = self._sizes.hidden
        products = ops.multiply_vector(ops.multiply(r, k).reshape(hidden), self.time_mix_r_k.weight)
        return ops.scale_rows(v, ops.head_sums(self._heads(products))).reshape(hidden)


class ChannelMix(Module):
    """The feed-forward block, which reads a mixture of a token's row and the one before it."""

    inline = True

    def __init__(self, size: int, hidden: int) -> None:
        self.channel_mix_lerp_k = Lerp(1, size, (size,))
        self.channel_mix_key = Linear(size, hidden)
        self.channel_mix_value = Linear(hidden, size)

    def __call__(self, mixed: Tensor) -> Tensor:
        return self.channel_mix_value(ops.squared_relu(self.channel_mix_key(mixed)))


class Layer(Module):
    def __init__(self, config: DecoderConfig, sizes: Sizes, is_first: bool) -> None:
        self.attn_norm = LayerNorm(config.hidden_size, config.eps)
        self.attn = TimeMix(sizes, is_first)
        self.attn_norm_2 = LayerNorm(config.hidden_size, config.eps)
        self.ffn = ChannelMix(config.hidden_size, config.ffn_size)

    def __call__(
        self, x: Tensor, first: Tensor | None, cache: RecurrentLayer, outputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        _, before, after = cache.states
        h, values = self.attn(self.attn_norm(x), first, cache, before)
        x = x + h
        (mixed,) = self.ffn.channel_mix_lerp_k(self.attn_norm_2(x), after, cache.segments)
        mixed, x = output_rows(outputs, mixed, x)
        return x + self.ffn(mixed), values


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, eps="layer_norm_epsilon", num_heads=1)
        super().__init__(config)
        self.token_embd_norm = LayerNorm(config.hidden_size, config.eps)
        sizes = Sizes.read(file, config.hidden_size)
        self._kind = rwkv_kind(file, config.hidden_size, shifts=2)
        self.blk = [Layer(config, sizes, not layer) for layer in range(config.num_layers)]

    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self._kind] * self.config.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[RecurrentLayer]) -> Tensor:
        x = self.token_embd_norm(self.token_embd(inputs.tokens))
        first: Tensor | None = None
        for layer, cache in zip(self.blk, caches, strict=True):
            x, first = layer(x, first, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
