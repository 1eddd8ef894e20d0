"""Granite 3 and 4, dense and with experts (Granite Team 2024): Llama, with factors of all that is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import MoE, MoEWithSharedExpert, SharedExpert, attention
from chaski.model.arch import llama
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs, output_rows


class Attention(llama.Attention):
    """`scale` is the factor of scores; 0 means the usual one."""

    def __init__(self, config: DecoderConfig, scale: float) -> None:
        super().__init__(config)
        self._scale = scale or config.head_size**-0.5

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=self._scale))


class Layer(llama.Layer):
    """`factor` is that of what both blocks add to the states."""

    def __init__(
        self, config: DecoderConfig, attn: Attention, ffn: Callable[[Tensor], Tensor], factor: float
    ) -> None:
        super().__init__(config, attn, ffn)
        self._factor = factor

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h * self._factor
        return x + self.ffn(self.ffn_norm(x)) * self._factor


class Model(llama.Model):
    """Rows of images have the factor of embeddings, too."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        arch = file.architecture
        self._embedding_factor = file.get(f"{arch}.embedding_scale", float, 0.0) or 1.0
        self._residual_factor = file.get(f"{arch}.residual_scale", float, 0.0) or 1.0
        self._logit_divisor = file.get(f"{arch}.logit_scale", float, 0.0) or 1.0
        self._attention_scale = file.get(f"{arch}.attention.scale", float, 0.0)
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> Layer:
        attn = Attention(self.config, self._attention_scale)
        return Layer(self.config, attn, self.ffn(file), self._residual_factor)

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        ffn = super().ffn(file)
        shared = file.get(f"{file.architecture}.expert_shared_feed_forward_length", int, 0)
        if shared and isinstance(ffn, MoE):
            return MoEWithSharedExpert(ffn, SharedExpert(self.config.hidden_size, shared))
        return ffn

    def embed(self, inputs: Inputs) -> Tensor:
        return super().embed(inputs) * self._embedding_factor

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        x = super().head(x, softcap)
        return x if self.config.pooling is not None else x * (1 / self._logit_divisor)
