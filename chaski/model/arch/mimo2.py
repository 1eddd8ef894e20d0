"""MiMo V2 (Xiaomi 2025): windows with sinks and more key/value heads, scaled values, and experts."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, Module, Norm, RouterConfig, attention
from chaski.model.arch import deepseek, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.rope import RopeConfig
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "mimo2",
    "MiMo V2 Flash, V2.5",
    tools=("hermes",),
    thinking=("hermes",),
    reads=(
        "attention.sliding_window",
        "attention.value_scale",
        "nextn_predict_layers",
        "rope.freq_base_swa",
    ),
)


class Sinks(Module):
    def __init__(self, num_heads: int) -> None:
        self.weight = Weight((num_heads,), optional=True, split=0)


class Attention(llama.Attention):
    """Attention with sinks if the file has them; `value_scale` multiplies its result."""

    def __init__(self, config: DecoderConfig, value_scale: float) -> None:
        super().__init__(config)
        self.attn_sinks = Sinks(config.num_heads)
        self._value_scale = value_scale

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        sinks = self.attn_sinks.weight if self.attn_sinks.weight.is_present else None
        attended = attention(q, k, v, cache, scale=c.head_size**-0.5, sinks=sinks)
        return self.attn_output(attended if self._value_scale == 1 else attended * self._value_scale)


class Model(deepseek.Model, WindowedModel):
    is_chained = False

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        arch = file.architecture
        self._value_scale = file.get(f"{arch}.attention.value_scale", float, 0.0) or 1.0
        self._near_base = file.get(f"{arch}.rope.freq_base_swa", float, 0.0)
        super().__init__(file, projector)

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers = super().layers(file)
        for index, layer in enumerate(layers):
            layer.attn = Attention(self._config(index), self._value_scale)
        return layers

    def _config(self, index: int) -> DecoderConfig:
        """Return the configuration of a layer, whose number of key/value heads may differ from others."""
        return replace(self.config, kv_heads=(self.config.kv_heads[index],))

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self._config(0), Attention(self._config(0), 1.0), self.ffn(file))

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        layer = super().nextn_layer(file, index)
        layer.attn = Attention(self._config(index), self._value_scale)
        return layer

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        return x

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True)

    def near_rope(self) -> Rope:
        c = self.config.rope
        return RopeConfig(c.dims, self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        return self.config.rope.rope(neox=True)

    def layer_kind(self, index: int) -> Causal:
        if self.has_window(index):
            return Causal(self._config(index).kv_shape(self.near_rope()), AttentionSpan(self.window))
        return Causal(self._config(index).kv_shape(self.far_rope()))
