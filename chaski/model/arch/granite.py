"""Granite 3 and 4, dense and with experts (Granite Team 2024): Llama with factors on every added term."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import MoE, MoEWithSharedExpert, SharedExpert, attention, output_rows
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "granite",
    "Granite 3 and 4, dense, Granite Vision 3",
    tools=("granite", "hermes"),
    notes="Tool calls in the formats of Granite 3 and Granite 4.",
    reads=("attention.scale", "embedding_scale", "logit_scale", "residual_scale"),
)


class Attention(llama.Attention):
    """`scale` is the factor of scores, 0 for the usual one. `rotates`: queries and keys are rotated."""

    def __init__(self, config: DecoderConfig, scale: float, rotates: bool) -> None:
        super().__init__(config)
        self._scale = scale or config.head_size**-0.5
        self._rotates = rotates

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q(x).reshape(c.num_heads, c.head_size)
        k = self.attn_k(x).reshape(c.num_kv_heads, c.head_size)
        if self._rotates:
            q, k = ops.rope(q, rope), ops.rope(k, rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=self._scale, sinks=self.sinks()))

    def sinks(self) -> Weight | None:
        """Return the sinks of the heads, or None."""
        return None


class Layer(llama.Layer):
    """A Llama layer. `factor` multiplies the output of both blocks before it is added to the states."""

    def __init__(
        self,
        config: DecoderConfig,
        attn: Callable[..., Tensor],
        ffn: Callable[[Tensor], Tensor],
        factor: float,
    ) -> None:
        super().__init__(config, attn, ffn)
        self._factor = factor

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h * self._factor
        return x + self.ffn(self.ffn_norm(x)) * self._factor


class Model(llama.Model):
    """Granite. Image rows are multiplied by the factor of embeddings, too."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        arch = file.architecture
        self._embedding_factor = file.get(f"{arch}.embedding_scale", float, 0.0) or 1.0
        self._residual_factor = file.get(f"{arch}.residual_scale", float, 0.0) or 1.0
        self._logit_divisor = file.get(f"{arch}.logit_scale", float, 0.0) or 1.0
        self._attention_scale = file.get(f"{arch}.attention.scale", float, 0.0)
        # Only for Granite, llama.cpp reads this key as the switch of the rope.
        self._rotates = file.get(f"{arch}.rope.scaling.finetuned", bool, True)
        _refuse_repeated_embeddings(file)
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> Layer:
        attn = Attention(self.config, self._attention_scale, self._rotates)
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

    def layer_kinds(self) -> Sequence[LayerKind]:
        kinds = super().layer_kinds()
        if self._rotates:
            return kinds
        c = self.config  # keys that are not rotated stay as they are where a context shifts
        return [Causal(c.kv_shape(NO_ROPE))] * c.num_layers


def _refuse_repeated_embeddings(file: GGUFFile) -> None:
    """Refuse a file whose later layers add the text embeddings again.

    The other parts belong to images and are zero for text.
    """
    key = f"{file.architecture}.deepstack_mapping"
    if key in file.metadata and not file.get(key, list[int])[1:].all():
        raise UnsupportedError(
            f"{file.path}: {key} adds token embeddings to layers after the first, which is not supported"
        )
