"""Qwen 3 Next and Qwen 3.5, dense and with experts (Qwen Team 2025, 2026): few of the layers attend.

The other layers are gated delta nets; see `chaski.model.delta_net`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    GatedSharedExpert,
    Linear,
    Module,
    MoE,
    MoEWithSharedExpert,
    RMSNorm,
    SwiGLU,
    attention,
    output_rows,
)
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, is_recurrent
from chaski.model.decoder import Decoder
from chaski.model.delta_net import DeltaConfig, GatedDeltaNet
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.nextn import AttendingBlocks, nextn_blocks, trunk_config

ARCHITECTURE = Architecture(
    "qwen3next",
    "Qwen3-Next, Qwen3-Coder-Next",
    tools=("qwen3", "qwen3-coder"),
    thinking=("qwen3-thinking",),
    reads=("full_attention_interval", "nextn_predict_layers"),
    fixed={"attention.causal": (True,)},
)


class GatedAttention(qwen3.Attention):
    """Attention with gates. Each head's query is followed by a gate, whose sigmoid multiplies the result."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q = Linear(config.hidden_size, 2 * config.num_heads * config.head_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q_gate = self.attn_q(x).reshape(c.num_heads, 2 * c.head_size)
        q = ops.rope(self.attn_q_norm(ops.slice(q_gate, 0, c.head_size)), rope)
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        attended = attention(q, ops.rope(k, rope), v, cache, scale=c.head_size**-0.5)
        gate = ops.slice(q_gate, c.head_size, c.head_size).reshape(c.num_heads * c.head_size)
        return self.attn_output(ops.multiply(attended, ops.sigmoid(gate)))


class Layer(Module):
    """A layer. `attn` takes the norm and `context`: a cache, preceded by the rope if `attn` is attention."""

    def __init__(
        self, config: DecoderConfig, attn: GatedAttention | GatedDeltaNet, ffn: SwiGLU | MoEWithSharedExpert
    ) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = attn
        self.post_attention_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h
        return x + self.ffn(self.post_attention_norm(x))


class Model(Decoder, AttendingBlocks):
    """Qwen 3 Next. Blocks for multi-token prediction after the last layer attend; see `OwnBlocks`."""

    def __init__(self, file: GGUFFile) -> None:
        whole = DecoderConfig.read(file)
        config = trunk_config(file, whole)
        super().__init__(config)
        if config.value_size != config.head_size:
            raise ModelError(
                f"{file.path}: values have {config.value_size} elements, but heads have {config.head_size}"
            )
        self._delta = DeltaConfig.read(file)
        self._rope = config.rope.rope(neox=True)
        self._is_linear = tuple(is_recurrent(file, whole.num_layers, interval=4)[: config.num_layers])
        self.blk = [self.layer(file, index) for index in range(config.num_layers)]
        self.unused = nextn_blocks(file, config)

    def layer(self, file: GGUFFile, index: int) -> Layer:
        return Layer(self.config, self._attn(file, index), self.ffn(file))

    def nextn_layer(self, file: GGUFFile, index: int) -> Layer:
        """Return the layer of a block; see `NextnModel`."""
        return Layer(self.config, GatedAttention(self.config), self.ffn(file))

    def _attn(self, file: GGUFFile, index: int) -> GatedAttention | GatedDeltaNet:
        if not self._is_linear[index]:
            return GatedAttention(self.config)
        block = f"blk.{index}."
        names = {name.removeprefix(block) for name in file.tensors if name.startswith(block)}
        return GatedDeltaNet(self.config.hidden_size, self.config.eps, self._delta, names)

    def ffn(self, file: GGUFFile) -> SwiGLU | MoEWithSharedExpert:
        """Return the feed-forward block of a layer."""
        arch, size = file.architecture, self.config.hidden_size
        if not file.get(f"{arch}.expert_count", int, 0):
            return SwiGLU(size, self.config.ffn_size)
        hidden = file.get(f"{arch}.expert_feed_forward_length", int)
        shared = file.get(f"{arch}.expert_shared_feed_forward_length", int)
        router = read_router(file, Gating.SOFTMAX, normalized=True)
        return MoEWithSharedExpert(MoE(size, hidden, router), GatedSharedExpert(size, shared))

    def layer_kinds(self) -> Sequence[LayerKind]:
        linear = self._delta.kind()
        return [
            linear if is_linear else self.layer_kind(index) for index, is_linear in enumerate(self._is_linear)
        ]

    def layer_kind(self, index: int) -> Causal:
        """Return the cache of a layer that attends, or of a block after the layers."""
        return Causal(self.config.kv_shape(self._rope))

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the input of the first layer."""
        return inputs.with_images(self.token_embd(inputs.tokens))

    def positions_of(self, inputs: Inputs, index: int) -> Tensor:
        """Return what attention of a block after the layers reads about positions."""
        return inputs.rope_table(self._rope)

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        rope = inputs.rope_table(self._rope)
        x = self.embed(inputs)
        for layer, is_linear, cache in zip(self.blk, self._is_linear, caches, strict=True):
            context = (cache,) if is_linear else (rope, cache)
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
