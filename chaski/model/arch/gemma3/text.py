"""Gemma 3, text (Gemma Team 2025): five layers attend within a window, then one attends to all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import RMSNorm, SandwichLayer, SwiGLU, attention
from chaski.model.arch import llama
from chaski.model.arch.gemma3.vision import Vision
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.rope import read_base

_PERIOD = 6
_LAYERS_OF_27B = 62


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig, scale: float, softcap: float) -> None:
        super().__init__(config)
        self._attend = partial(attention, scale=scale, softcap=softcap)
        self.attn_q_norm = RMSNorm(config.head_size, config.eps)
        self.attn_k_norm = RMSNorm(config.head_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(self._attend(ops.rope(q, rope), ops.rope(k, rope), v, cache))


class TextModel(Decoder):
    """The model without vision."""

    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        super().__init__(config)
        arch = file.architecture
        self.window = file.get(f"{arch}.attention.sliding_window", int, 0) or None
        softcap = file.get(f"{arch}.attn_logit_softcapping", float, 0.0)
        size, eps, scale = config.hidden_size, config.eps, _scale(file, config)
        self.blk = [
            SandwichLayer(
                size,
                eps,
                Attention(config, scale, softcap),
                SwiGLU(size, config.ffn_size, ops.geglu),
                self.window if is_near else None,
            )
            for is_near in sliding_layers(file, config.num_layers, _PERIOD)
        ]
        self._softcap = file.get(f"{arch}.final_logit_softcapping", float, 0.0)
        # Layers with a window have a separate rope base and no rope scaling.
        local = config.rope.unscaled(read_base(file, f"{arch}.rope.freq_base_swa"))
        self._local, self._global = local.rope(neox=True), config.rope.rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(c.kv_shape(self._rope(layer)), self.span(layer)) for layer in self.blk]

    def span(self, layer: SandwichLayer) -> AttentionSpan:
        return AttentionSpan(layer.window)

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        ropes = {rope: ops.rope_table(inputs.positions, rope) for rope in (self._local, self._global)}
        x = inputs.with_images(self.token_embd(inputs.tokens) * self.config.hidden_size**0.5)
        for layer, cache in zip(self.blk, caches, strict=True):
            outputs = inputs.enter(layer, self.blk, x)
            x = layer(x, ropes[self._rope(layer)], cache, outputs=outputs)
        return self.head(inputs.leave(x), self._softcap)

    def _rope(self, layer: SandwichLayer) -> Rope:
        return self._global if layer.window is None else self._local


class Model(TextModel):
    vision: Vision | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, DecoderConfig.read(file))
        if projector is not None or "gemma3.vision.block_count" in file.metadata:
            self.vision = Vision(projector or file, self.config.hidden_size)


def _scale(file: GGUFFile, config: DecoderConfig) -> float:
    """Return the scale of queries: from the head size, or from hidden size / heads in the 27B.

    Files do not store it.
    """
    size = config.head_size if config.num_layers != _LAYERS_OF_27B else config.hidden_size // config.num_heads
    return file.get(f"{file.architecture}.attention.scale", float, 0.0) or size**-0.5
