"""Llama 1 to 3.2, Mistral, Mixtral and every `llama` file (Touvron et al. 2023; Llama Team 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    DecoderLayer,
    Joined,
    Linear,
    Module,
    MoE,
    Norm,
    RMSNorm,
    RopeFactors,
    SwiGLU,
    attention,
    output_rows,
)
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.nextn import nextn_blocks, trunk_config
from chaski.model.projectors import PROJECTORS, read_vision

ARCHITECTURE = Architecture(
    "llama",
    "Llama 1 to 3.3, Mistral 7B and Small, Mixtral, DeepSeek R1 Distill, LLaVA, SmolVLM, Idefics "
    "3 and others",
    tools=("llama3", "mistral", "hermes"),
    thinking=("deepseek3",),
    notes="Pictures with a projector of LLaVA 1.5 and 1.6, SmolVLM and Idefics 3.",
)


FeedForward: TypeAlias = Callable[[Tensor], Tensor]


# `inline`: tensor names skip this module; a file names `blk.0.attn_q`, not `blk.0.attn.attn_q`.
# `joined`: some files store the rows of these three tensors as one tensor, `blk.0.attn_qkv`.
class Attention(Module):
    inline = True
    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self.attn_q = Linear(config.hidden_size, config.num_heads * config.head_size)
        self.attn_k = Linear(config.hidden_size, config.num_kv_heads * config.head_size)
        self.attn_v = Linear(config.hidden_size, config.num_kv_heads * config.value_size)
        self.attn_output = Linear(config.num_heads * config.value_size, config.hidden_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Layer(DecoderLayer):
    """Two blocks, each of which reads a norm of the states and adds its output to them.

    `attn` takes the norm and `context`: its other inputs, such as ropes and a cache.
    """

    def __init__(
        self, config: DecoderConfig, attn: Callable[..., Tensor], ffn: Callable[[Tensor], Tensor]
    ) -> None:
        self.attn_norm = self.norm(config)
        self.attn = attn
        self.ffn_norm = self.norm(config)
        self.ffn = ffn

    def norm(self, config: DecoderConfig) -> Norm:
        """Return a norm of the hidden states."""
        return RMSNorm(config.hidden_size, config.eps)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class Model(Decoder):
    """Llama. `vision` is an image encoder from a `projector` or from the file itself (LLaVA).

    The encoder is one of the kinds in `projectors`.
    """

    projectors = PROJECTORS
    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = self.read_config(file)
        super().__init__(config)
        self.blk = self.layers(file)
        self.rope_freqs = RopeFactors(config.rope.dims)
        self.vision = self.encoder(file, projector)
        self.unused = (*self.unused, *nextn_blocks(file, config))

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return trunk_config(file, DecoderConfig.read(file))

    def encoder(self, file: GGUFFile, projector: GGUFFile | None) -> MultimodalProcessor | None:
        """Return the image encoder in the projector or in the file."""
        return read_vision(file, projector, self.config.hidden_size, self.projectors)

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        return [self.layer(file) for _ in range(self.config.num_layers)]

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return Layer(self.config, Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> FeedForward:
        """Return the feed-forward block of a layer."""
        return feed_forward(file, self.config)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self.layer_kind(index) for index in range(self.config.num_layers)]

    def layer_kind(self, index: int) -> Causal:
        """Return the cache of a layer, or of a block after the layers."""
        return Causal(self.config.kv_shape(self.rope()))

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        positions = self.positions(inputs)
        x = self.embed(inputs)
        for layer, cache in zip(self.blk, caches, strict=True):
            # `enter` returns the rows to keep after this layer. A draft that reads this model's hidden states
            # receives the layer's input from `enter` and the output of the last layer from `leave`.
            x = layer(x, positions, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the input of the first layer."""
        return inputs.with_images(self.token_embd(inputs.tokens))

    def positions(self, inputs: Inputs) -> Any:
        """Return what attention reads about positions: the table of the rope."""
        return inputs.rope_table(self.rope())

    def positions_of(self, inputs: Inputs, index: int) -> Any:
        """Return what attention of a block after the layers reads about positions."""
        return self.positions(inputs)

    def rope(self) -> Rope:
        return self.config.rope.rope(factors=self.rope_freqs.weight.array)


def feed_forward(file: GGUFFile, config: DecoderConfig) -> FeedForward:
    """Return the feed-forward block of a layer; Mixtral's files are Llama files with experts."""
    arch = file.architecture
    if not file.get(f"{arch}.expert_count", int, 0):
        return SwiGLU(config.hidden_size, config.ffn_size)
    hidden = file.get(f"{arch}.expert_feed_forward_length", int, 0) or config.ffn_size
    return MoE(config.hidden_size, hidden, read_router(file, Gating.SOFTMAX, normalized=True))
