"""Gemma 4, text (Google 2026): windows with smaller heads, shared keys and values, per-layer embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    Factor,
    RMSNorm,
    RopeFactors,
    SandwichLayer,
    SharedHistory,
    SwiGLU,
    output_rows,
)
from chaski.model.arch.gemma4.attention import Attention, SharedAttention
from chaski.model.arch.gemma4.encoders import read_vision
from chaski.model.arch.gemma4.experts import Experts
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.decoder import Decoder
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.per_layer import PerLayerBlock, PerLayerInputs
from chaski.model.rope import read_base

_PERIOD = 6


class Layer(SandwichLayer):
    """A layer. `own`: its part of the per-layer embeddings, `per_layer` elements per token."""

    def __init__(
        self, config: DecoderConfig, attn: Attention | SharedAttention, window: int | None, per_layer: int
    ) -> None:
        ffn = SwiGLU(config.hidden_size, config.ffn_size, ops.geglu)
        super().__init__(config.hidden_size, config.eps, attn, ffn, window)
        self.config = config
        self.per_layer = PerLayerBlock(config, per_layer) if per_layer else None
        self.layer_output_scale = Factor()

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None, own: Tensor | None = None) -> Tensor:
        x = super().__call__(x, *context, outputs=outputs)
        if self.per_layer is not None and own is not None:
            x = x + self.per_layer(x, *output_rows(outputs, own))
        return self.layer_output_scale(x)


class ExpertLayer(Layer):
    """A layer with a dense block and experts on norms of the same states; their sum is normalized again."""

    def __init__(
        self,
        config: DecoderConfig,
        attn: Attention | SharedAttention,
        window: int | None,
        per_layer: int,
        experts: Experts,
    ) -> None:
        super().__init__(config, attn, window, per_layer)
        self.post_ffw_norm_1 = RMSNorm(config.hidden_size, config.eps)
        self.pre_ffw_norm_2 = RMSNorm(config.hidden_size, config.eps)
        self.experts = experts
        self.post_ffw_norm_2 = RMSNorm(config.hidden_size, config.eps)

    def feed_forward(self, x: Tensor) -> Tensor:
        dense = self.post_ffw_norm_1(super().feed_forward(x))
        return dense + self.post_ffw_norm_2(self.experts(self.pre_ffw_norm_2(x), chooser=x))


class Model(Decoder):
    """The text model. Its last layers store nothing and read the last storing layer of their kind.

    If the rows of an image see each other, they do so only in layers with a window and within that window.
    """

    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        window = file.get("gemma4.attention.sliding_window", int)
        self._local = local_config(file, config)
        self._num_stored = config.num_layers - file.get("gemma4.attention.shared_kv_layers", int, 0)
        size = file.get("gemma4.embedding_length_per_layer_input", int, 0)
        self.per_layer = PerLayerInputs(config, size) if size else None
        self.rope_freqs = RopeFactors(config.rope.dims)
        self.blk: list[Layer] = []
        near = sliding_layers(file, config.num_layers, _PERIOD)
        for is_near, kv_heads, ffn_size in zip(near, config.kv_heads, config.ffn_sizes, strict=True):
            sized = replace(self._local if is_near else config, kv_heads=(kv_heads,), ffn_sizes=(ffn_size,))
            attn = Attention(sized) if len(self.blk) < self._num_stored else SharedAttention(sized)
            self.blk.append(_layer(file, sized, attn, window if is_near else None, size))
        self._softcap = file.get("gemma4.final_logit_softcapping", float, 0.0)
        self.vision = read_vision(file, projector, config.hidden_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        kinds = []
        for layer in self.blk[: self._num_stored]:
            c = layer.config
            shape = c.kv_shape(self._rope(layer))
            kinds.append(Causal(shape, AttentionSpan(layer.window, ahead=self._ahead(layer))))
        return kinds

    def _ahead(self, layer: Layer) -> int | None:
        """Return how many rows after itself an image row sees: 0 in layers that see all earlier tokens."""
        has_groups = self.vision is not None and self.vision.is_bidirectional
        return 0 if has_groups and layer.window is None else None

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        x = inputs.with_images(self.token_embd(inputs.tokens) * self.config.hidden_size**0.5)
        vectors = [None] * len(self.blk) if self.per_layer is None else self.per_layer(inputs.tokens, x)
        ropes: dict[int | None, Tensor] = {}
        histories: dict[int | None, SharedHistory] = {}
        for index, layer in enumerate(self.blk):
            if layer.window not in ropes:
                ropes[layer.window] = ops.rope_table(inputs.positions, self._rope(layer))
            if index < self._num_stored:
                histories[layer.window] = SharedHistory(caches[index])
            outputs = inputs.enter(layer, self.blk, x)
            x = layer(x, ropes[layer.window], histories[layer.window], outputs=outputs, own=vectors[index])
        return self.head(inputs.leave(x), self._softcap)

    def _rope(self, layer: Layer) -> Rope:
        """Return the rope. In layers that see all tokens, only a quarter of the pairs rotates."""
        if layer.window is not None:
            return self._local.rope.rope(neox=True)
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)


def _layer(
    file: GGUFFile,
    config: DecoderConfig,
    attn: Attention | SharedAttention,
    window: int | None,
    per_layer: int,
) -> Layer:
    if not file.get("gemma4.expert_count", int, 0):
        return Layer(config, attn, window, per_layer)
    hidden = file.get("gemma4.expert_feed_forward_length", int)
    router = read_router(file, Gating.SOFTMAX, normalized=True)
    return ExpertLayer(config, attn, window, per_layer, Experts(config, hidden, router))


def local_config(file: GGUFFile, config: DecoderConfig) -> DecoderConfig:
    """Return the configuration of layers with a window, which have smaller heads and a different rope."""
    arch = file.architecture
    size = file.get(f"{arch}.attention.key_length_swa", int, config.head_size)
    rope = replace(
        config.rope.unscaled(read_base(file, f"{arch}.rope.freq_base_swa")),
        dims=file.get(f"{arch}.rope.dimension_count_swa", int, 0) or size,
    )
    values = file.get(f"{arch}.attention.value_length_swa", int, size)
    return replace(config, head_size=size, value_size=values, rope=rope)
