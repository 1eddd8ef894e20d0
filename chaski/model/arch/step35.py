"""Step 3.5 and 3.7 (StepFun 2026): gates of heads, two kinds of layers, and bounded activations."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, Norm, RouterConfig, SwiGLU
from chaski.model.arch import deepseek, laguna, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, of_layers
from chaski.model.experts import experts, limited_swiglu, read_router
from chaski.model.nextn import trunk_config
from chaski.model.rope import RopeConfig
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "step35",
    "Step 3.5 and 3.7 Flash",
    reads=(
        "attention.sliding_window",
        "leading_dense_block_count",
        "nextn_predict_layers",
        "rope.freq_base_swa",
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
    ),
    fixed={"moe_every_n_layers": (0, 1)},
)


class Attention(laguna.Attention):
    def gates(self, x: Tensor) -> Tensor:
        return ops.sigmoid(self.attn_gate(x))


class Model(deepseek.Model, WindowedModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._near_base = file.get(f"{file.architecture}.rope.freq_base_swa", float, 0.0)
        super().__init__(file, projector)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        arch = file.architecture
        heads = of_layers(file, f"{arch}.attention.head_count", file.get(f"{arch}.block_count", int))
        config = trunk_config(file, DecoderConfig.read(file, num_heads=heads[0]))
        self._configs = tuple(
            replace(config, num_heads=heads[index], kv_heads=(config.kv_heads[index],) * config.num_layers)
            for index in range(file.get(f"{arch}.block_count", int))
        )
        return config

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers = super().layers(file)
        for index, layer in enumerate(layers):
            self._adapt(file, index, layer)
        return layers

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        layer = super().nextn_layer(file, index)
        self._adapt(file, index, layer)
        return layer

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        return x

    def _adapt(self, file: GGUFFile, index: int, layer: DecoderLayer) -> None:
        """Give a layer its own number of heads and its own limits."""
        config = self._configs[index]
        layer.attn = Attention(config, config.num_heads)
        layer.ffn = self._feed_forward(file, index, isinstance(layer.ffn, SwiGLU))

    def _feed_forward(self, file: GGUFFile, layer: int, is_dense: bool) -> llama.FeedForward:
        own, shared = (limited_swiglu(file, f"swiglu_clamp_{part}", layer) for part in ("exp", "shexp"))
        if is_dense:
            return SwiGLU(self.config.hidden_size, self.config.ffn_sizes[layer], shared)
        return experts(file, self.config, self.router(file), own, of_shared=shared)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        config = self._configs[0]
        return llama.Layer(config, Attention(config, config.num_heads), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True)

    def near_rope(self) -> Rope:
        c = self.config.rope
        return RopeConfig(c.dims, self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        """Return the rope of layers that see all tokens, which rotates half of each head."""
        c, factors = self.config.rope, self.rope_freqs.weight.array
        dims = c.dims // 2
        return replace(c, dims=dims).rope(
            neox=True, factors=None if factors is None else factors[: dims // 2]
        )

    def layer_kind(self, index: int) -> Causal:
        if self.has_window(index):
            return Causal(self._configs[index].kv_shape(self.near_rope()), AttentionSpan(self.window))
        return Causal(self._configs[index].kv_shape(self.far_rope()))
