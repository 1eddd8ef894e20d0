"""QRWKV 6 (Goldstein et al. 2025, https://arxiv.org/abs/2505.03005): Qwen 2.5 with RWKV 6's attention."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, RecurrentLayer
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Module, RMSNorm, SwiGLU, output_rows
from chaski.model.arch.rwkv6 import Sizes, TimeMix
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.rwkv import rwkv_kind

ARCHITECTURE = Architecture(
    "rwkv6qwen2",
    "QRWKV 6, QwQ RWKV 6",
    tools=("hermes",),
    thinking=("hermes",),
    fixed={"attention.causal": (True,)},
)


class GatedTimeMix(TimeMix):
    """Gated linear attention: keys are scaled by what their decay removes, and heads may share them."""

    def read(self, r: Tensor, decay: Tensor, k: Tensor, v: Tensor, cache: RecurrentLayer) -> Tensor:
        c = self._sizes
        k, v = self._repeated(k), self._repeated(v)
        k = k + ops.multiply(k, decay) * -1.0
        r, decay, k, v = (self.heads(each) for each in (r, decay, k, v))
        y = ops.generalized_delta(r, decay, k, v, cache.states[0], cache.segments)
        return y.reshape(c.hidden) * float(c.head**-0.5)

    def gate(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)

    def _repeated(self, x: Tensor) -> Tensor:
        """Return a row for each head (n, size) from rows that consecutive heads share."""
        c = self._sizes
        if c.keys == c.hidden:
            return x
        group = c.hidden // c.keys
        parts = [ops.slice(x, head // group * c.head, c.head) for head in range(c.heads)]
        return ops.concat([(part, head * c.head, 1) for head, part in enumerate(parts)])


class Layer(Module):
    def __init__(self, config: DecoderConfig, sizes: Sizes) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = GatedTimeMix(sizes)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size)

    def __call__(self, x: Tensor, cache: RecurrentLayer, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), cache, cache.states[1]), x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, num_heads=1)
        super().__init__(config)
        sizes = Sizes.read(file, config)
        self._kind = rwkv_kind(file, config.hidden_size, shifts=1)
        self.blk = [Layer(config, sizes) for _ in range(config.num_layers)]

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self._kind] * self.config.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[RecurrentLayer]) -> Tensor:
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
