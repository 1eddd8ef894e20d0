"""Llama 4 (Meta 2025): experts and chunked attention; every fourth layer sees all tokens, without a rope."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    Joined,
    Linear,
    Module,
    MoE,
    MoEWithSharedExpert,
    RopeFactors,
    SharedExpert,
    SwiGLU,
    attention,
)
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.decoder import Decoder
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors import read_vision
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "llama4",
    "Llama 4 Scout and Maverick",
    tools=("llama3",),
    notes="Picture rows have the order of transformers; llama.cpp orders them differently.",
    reads=("attention.temperature_scale", "interleave_moe_layer_step"),
)


_PERIOD = 4
_EXPERTS_WITHOUT_NORMS = 128  # the number of experts in Maverick, which does not normalize heads


class Attention(Module):
    """Chunked layers rotate queries and keys, then normalize; the others scale queries by their position."""

    inline = True
    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))

    def __init__(self, config: DecoderConfig, has_norms: bool) -> None:
        self._config = config
        self._has_norms = has_norms
        self.attn_q = Linear(config.hidden_size, config.num_heads * config.head_size)
        self.attn_k = Linear(config.hidden_size, config.num_kv_heads * config.head_size)
        self.attn_v = Linear(config.hidden_size, config.num_kv_heads * config.value_size)
        self.attn_output = Linear(config.num_heads * config.value_size, config.hidden_size)

    def __call__(self, x: Tensor, rope: Tensor | None, scale: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q(x).reshape(c.num_heads, c.head_size)
        k = self.attn_k(x).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        if rope is None:
            q = ops.scale_rows(q, scale)
        else:
            q, k = ops.rope(q, rope), ops.rope(k, rope)
            if self._has_norms:
                q, k = ops.rms_norm(q, None, c.eps), ops.rms_norm(k, None, c.eps)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(Decoder):
    """Llama 4. `vision` is an image encoder from a `projector` or from the file itself."""

    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        self.rope_freqs = RopeFactors(config.rope.dims)
        if file.get("llama4.attention.sliding_window", int, None) == 0:
            raise UnsupportedError(
                f"{file.path}: llama4.attention.sliding_window = 0 means attention without chunks and a "
                "different choice of layers with a rope, which is not supported"
            )
        self._chunk = file.get("llama4.attention.chunk_size", int, 8192)
        self._chunked = sliding_layers(file, config.num_layers, _PERIOD)
        self._length = file.get("llama4.attention.temperature_length", int, 8192)
        self._beta = file.get("llama4.attention.temperature_scale", float, 0.1)
        step = file.get("llama4.interleave_moe_layer_step", int)
        num_experts = file.get("llama4.expert_count", int)
        has_norms = file.get("llama4.use_qk_norm", bool, num_experts != _EXPERTS_WITHOUT_NORMS)
        self.blk = [
            llama.Layer(
                config,
                Attention(config, has_norms),
                SwiGLU(config.hidden_size, config.ffn_size) if (index + 1) % step else _mixed(file, config),
            )
            for index in range(config.num_layers)
        ]
        self.vision = read_vision(file, projector, config.hidden_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shape = c.kv_shape(self._rope())
        chunked = Causal(shape, AttentionSpan(chunk=self._chunk))
        full = Causal(dataclasses.replace(shape, rope=NO_ROPE))
        return [chunked if is_chunked else full for is_chunked in self._chunked]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope())
        scale = ops.position_scale(inputs.positions, self._length, self._beta, offset=1)
        x = inputs.with_images(self.token_embd(inputs.tokens))
        for layer, cache, is_chunked in zip(self.blk, caches, self._chunked, strict=True):
            outputs = inputs.enter(layer, self.blk, x)
            x = layer(x, rope if is_chunked else None, scale, cache, outputs=outputs)
        return self.head(inputs.leave(x))

    def _rope(self) -> Rope:
        return self.config.rope.rope(factors=self.rope_freqs.weight.array)


def _mixed(file: GGUFFile, config: DecoderConfig) -> MoEWithSharedExpert:
    hidden = file.get("llama4.expert_feed_forward_length", int)
    router = replace(read_router(file, Gating.SIGMOID, normalized=False), weighs_inputs=True)
    return MoEWithSharedExpert(
        MoE(config.hidden_size, hidden, router), SharedExpert(config.hidden_size, hidden)
    )
