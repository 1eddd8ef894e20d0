"""DeepSeek V4 (DeepSeek-AI 2026): compressed attention, several residual streams, hash-routed experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import HashMoE, Module, MoE, Norm, RMSNorm, SharedExpert, output_rows
from chaski.model.architecture import Architecture
from chaski.model.compressed import CompressedAttention, CompressedConfig, Ropes, of_layers
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.experts import read_router
from chaski.model.hyper import streams_of
from chaski.model.input import Inputs
from chaski.model.manifold import ManifoldConfig, ManifoldConnection, ManifoldHead
from chaski.model.nextn import StreamsHead, nextn_blocks, trunk_config

ARCHITECTURE = Architecture(
    "deepseek4",
    "DeepSeek V4 Flash and Pro",
    tools=("deepseek3.2",),
    thinking=("deepseek3.2",),
    notes="Text only. A token keeps the entry of its group, so entries take as much memory as keys. The keys "
    "of indexers are not turned by a Hadamard matrix before they are rounded, unlike in llama.cpp. Only "
    "chaski reads how a block for multi-token prediction sums its streams (`nextn.hc_head_fn`).",
    reads=(
        "attention.sliding_window",
        "embedding_length_out",
        "nextn_predict_layers",
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
    ),
)


class FeedForward(Module):
    """The chosen experts of a token and the shared one. A table chooses them in the first layers."""

    inline = True
    unused = ("exp_probs_b_vl.",)  # of tokens of images

    def __init__(self, experts: MoE, shared: SharedExpert) -> None:
        self.experts = experts
        self.shared = shared

    def __call__(self, x: Tensor, tokens: Tensor) -> Tensor:
        experts = self.experts
        chosen = experts.of_tokens(x, tokens) if isinstance(experts, HashMoE) else experts(x)
        return chosen + self.shared(x)


class Layer(Module):
    def __init__(self, streams: ManifoldConfig, attention: CompressedConfig, ffn: FeedForward) -> None:
        self.attn_streams = ManifoldConnection("hc_attn", streams)
        self.attn_norm = RMSNorm(streams.size, streams.norm_eps)
        self.attn = CompressedAttention(attention)
        self.ffn_streams = ManifoldConnection("hc_ffn", streams)
        self.ffn_norm = RMSNorm(streams.size, streams.norm_eps)
        self.ffn = ffn

    def __call__(
        self, x: Tensor, tokens: Tensor, ropes: Ropes, caches: Sequence[Any], outputs: Tensor | None
    ) -> Tensor:
        h, *weights = self.attn_streams.read(x)
        h = self.attn(self.attn_norm(h), ropes, caches)
        h, x, *weights = output_rows(outputs, h, x, *weights)
        x = self.attn_streams.write(x, h, *weights)
        h, *weights = self.ffn_streams.read(x)
        tokens = tokens if outputs is None else tokens.rows(outputs)
        return self.ffn_streams.write(x, self.ffn(self.ffn_norm(h), tokens), *weights)


class Block(Layer):
    """The layer of a block for multi-token prediction.

    `nextn` has the sum of its streams, where that is not the model's.
    """

    nextn: StreamsHead | None = None


class Model(Decoder):
    is_chained = True

    def __init__(self, file: GGUFFile) -> None:
        config = _without_blocks(file, DecoderConfig.read(file))
        super().__init__(config)
        self.unused = nextn_blocks(file, config)
        self._streams = ManifoldConfig.read(file, config.eps)
        self._attention = tuple(of_layers(file, config))
        self._window = CompressedConfig.read(file, config, 0)
        hashed = file.get("deepseek4.hash_layer_count", int)
        self.blk = [
            Layer(self._streams, attention, self._feed_forward(file, index, index < hashed))
            for index, attention in enumerate(self._attention)
        ]
        self.output_streams = ManifoldHead("output_hc", self._streams)
        base = file.get("deepseek4.attention.compress_rope_freq_base", float)
        self._plain = config.rope.unscaled(config.rope.base)
        self._scaled = replace(config.rope, base=base)

    def _feed_forward(self, file: GGUFFile, layer: int, is_hashed: bool) -> FeedForward:
        size, hidden = self.config.hidden_size, file.get("deepseek4.expert_feed_forward_length", int)
        router = read_router(file, Gating.SQRT_SOFTPLUS, normalized=True, has_bias=not is_hashed)
        own, shared = (_activation(file, f"swiglu_clamp_{part}", layer) for part in ("exp", "shexp"))
        experts = (
            HashMoE(size, hidden, router, self.config.vocab_size, own)
            if is_hashed
            else MoE(size, hidden, router, own)
        )
        count = file.get("deepseek4.expert_shared_count", int)
        return FeedForward(experts, SharedExpert(size, count * hidden, shared))

    @property
    def nextn_size(self) -> int:
        """Return the size of all streams; see `NextnModel` for this and the next methods."""
        return self._streams.count * self._streams.size

    def embed_nextn(self, inputs: Inputs) -> Tensor:
        return self.token_embd(inputs.tokens)

    def nextn_layer(self, file: GGUFFile, index: int) -> Block:
        """Return a layer that attends to a window, as all blocks do."""
        block = Block(self._streams, self._window, self._feed_forward(file, index, False))
        if f"blk.{index}.nextn.hc_head_fn.weight" in file.tensors:
            block.nextn = StreamsHead(ManifoldHead("hc_head", self._streams))
        return block

    def nextn_kinds(self, index: int) -> Sequence[LayerKind]:
        return list(self._window.kinds())

    def nextn_context(self, inputs: Inputs, index: int, caches: Sequence[Any]) -> tuple[Any, ...]:
        return inputs.tokens, Ropes(inputs, self._plain, self._scaled), caches

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        return x

    def nextn_rows(self, layer: Block, x: Tensor, norm: Norm) -> Tensor:
        head = self.output_streams if layer.nextn is None else layer.nextn.head
        return norm(head(x))

    def layer_kinds(self) -> Sequence[LayerKind]:
        """Return the kinds of the layers' windows, and then those of their entries, layer by layer."""
        kinds = [list(attention.kinds()) for attention in self._attention]
        return [*(own[0] for own in kinds), *(kind for own in kinds for kind in own[1:])]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        ropes = Ropes(inputs, self._plain, self._scaled)
        x = streams_of(self.token_embd(inputs.tokens), self._streams.count)
        more = iter(caches[len(self.blk) :])
        for layer, attention, cache in zip(self.blk, self._attention, caches, strict=False):
            own = [cache, *islice(more, len(list(attention.kinds())) - 1)]
            x = layer(x, inputs.tokens, ropes, own, outputs=inputs.enter(layer, self.blk, x))
        return self.head(self.output_streams(inputs.leave(x)))


def _without_blocks(file: GGUFFile, config: DecoderConfig) -> DecoderConfig:
    """Return the configuration of the layers; only some files that state blocks have their tensors."""
    has_blocks = any(name.endswith(".nextn.eh_proj.weight") for name in file.tensors)
    lacks_last = f"blk.{config.num_layers - 1}.attn_norm.weight" not in file.tensors
    return trunk_config(file, config) if has_blocks or lacks_last else config


def _activation(file: GGUFFile, key: str, layer: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the SwiGLU of a layer, with bounds if the file has some."""
    limits = file.get(f"deepseek4.{key}", list[float], None)
    # A block for multi-token prediction that has no limit of its own takes that of the last layer.
    limit = 0.0 if limits is None else float(limits[min(layer, len(limits) - 1)])
    return partial(_bounded_swiglu, limit=limit) if limit > 0 else ops.swiglu


def _bounded_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    low = -float("inf")
    return ops.swiglu(ops.clamp(gate, low=low, high=limit), ops.clamp(up, low=-limit, high=limit))
