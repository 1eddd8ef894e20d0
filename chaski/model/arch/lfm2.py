"""LFM 2 (Liquid AI 2025): most layers are convolutions over the last few tokens, the others attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind, Recurrent, RecurrentLayer, StateShape
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import ConvKernel, Linear, Module, RMSNorm, SwiGLU, output_rows
from chaski.model.arch.qwen3 import Attention
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, kv_heads
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors import read_vision

ARCHITECTURE = Architecture(
    "lfm2",
    "LFM 2 and 2.5, dense, LFM2-VL",
    tools=("lfm2",),
    thinking=("lfm2-thinking",),
    fixed={"attention.causal": (True,)},
)


class ShortConv(Module):
    """A gated convolution, out(c · conv(b · x)), with b, c and x from one matrix."""

    def __init__(self, hidden_size: int, taps: int) -> None:
        self._size = hidden_size
        self.in_proj = Linear(hidden_size, 3 * hidden_size)
        self.conv = ConvKernel(hidden_size, taps)
        self.out_proj = Linear(hidden_size, hidden_size)

    def __call__(self, x: Tensor, cache: RecurrentLayer) -> Tensor:
        parts = self.in_proj(x)
        b, c, x = (ops.slice(parts, i * self._size, self._size) for i in range(3))
        (states,) = cache.states
        y = ops.short_conv(ops.multiply(b, x), self.conv.weight.elements, states, cache.segments)
        return self.out_proj(ops.multiply(c, y))


class Layer(Module):
    def __init__(self, config: DecoderConfig) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn: Callable[[Tensor], Tensor] = SwiGLU(config.hidden_size, config.ffn_size)

    def finish(self, x: Tensor, h: Tensor, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, h, x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class AttentionLayer(Layer):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn = Attention(config)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache, outputs: Tensor | None) -> Tensor:
        return self.finish(x, self.attn(self.attn_norm(x), rope, cache), outputs)


class ConvLayer(Layer):
    def __init__(self, config: DecoderConfig, taps: int) -> None:
        super().__init__(config)
        self.shortconv = ShortConv(config.hidden_size, taps)

    def __call__(self, x: Tensor, rope: Tensor, cache: RecurrentLayer, outputs: Tensor | None) -> Tensor:
        return self.finish(x, self.shortconv(self.attn_norm(x), cache), outputs)


class Model(Decoder):
    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        self.token_embd_norm = self.output_norm  # files have this name for the last norm
        del self.output_norm
        self._taps = file.get(f"{file.architecture}.shortconv.l_cache", int)
        self.blk = [
            AttentionLayer(config) if heads else ConvLayer(config, self._taps)
            for heads in kv_heads(file, config.num_layers)
        ]
        self._rope = config.rope.rope(neox=True)
        self.vision = read_vision(file, projector, config.hidden_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        attending = Causal(c.kv_shape(self._rope))
        convolving = Recurrent((StateShape(self._taps - 1, c.hidden_size),))
        return [attending if isinstance(layer, AttentionLayer) else convolving for layer in self.blk]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope)
        x = inputs.with_images(self.token_embd(inputs.tokens))
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        return self.output_of(self.token_embd_norm(x), softcap)
