"""GLM 5.3 Flash (Z.ai 2026): Kimi Delta Attention, sparse latent attention, and streams that a matrix mixes.

Attention reads no positions. Its indexer scores the pooled keys of groups of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerKind, Recurrent, RecurrentLayer, pooled
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    DecoderLayer,
    LatentAttention,
    Linear,
    Module,
    Norm,
    RouterConfig,
    SwiGLU,
    output_rows,
)
from chaski.ml.recurrent_ops import CHUNK
from chaski.model.arch import deepseek2, llama
from chaski.model.arch.maple import clamped
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import dense_block, experts, read_router
from chaski.model.hybrid import HybridModel
from chaski.model.hyper import streams_of, sum_of_streams
from chaski.model.input import Inputs
from chaski.model.kimi_delta import BoundedKimiDelta, KimiDeltaConfig
from chaski.model.latent import latent_attention, latent_config
from chaski.model.manifold import ManifoldConfig, ManifoldConnection
from chaski.model.rope import NO_ROPE
from chaski.model.sparse import Indexer, IndexerConfig, SparseHistory

ARCHITECTURE = Architecture(
    "glm5-next",
    "GLM 5.3 Flash",
    tools=("glm-4.7",),
    thinking=("glm-4.7",),
    notes="Text only.",
    reads=("leading_dense_block_count", "nextn_predict_layers", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
    fixed={"attention.causal": (True,), "attention.indexer.kpool_select_tail": (True,)},
)


class DeltaAttention(BoundedKimiDelta):
    def stored_decays(self) -> tuple[int, ...]:
        return (self._config.heads,)


class _Places(Module):
    def __init__(self, count: int, size: int) -> None:
        self.weight = Weight((count, size), host=True)


class PoolIndexer(Indexer):
    """An indexer that chooses groups of tokens by keys that `Attention` pools. Nothing is turned."""

    def choose_pools(
        self,
        x: Tensor,
        latents: Tensor,
        history: SparseHistory,
        pools: Callable[[Tensor], Tensor],
        block: int,
    ) -> None:
        """Choose the groups for rows of x (n, size). `pools` pools the keys of tokens (n, head size)."""
        c = self._config
        q = self.attn_q_b(latents).reshape(c.heads, c.head_size)
        k = pools(self.k_norm(self.attn_k(x))).reshape(1, c.head_size)
        weights = self.proj(x) * c.heads**-0.5
        history.choose(q, weights, k, count=c.count // block, scale=c.head_size**-0.5, block=block)


class Attention(Module):
    """Latent attention to the tokens that the layer's indexer chooses, or that of an earlier layer.

    `indexer` is None in the latter case. `block`: the tokens of a group.
    """

    inline = True

    def __init__(
        self, attn: LatentAttention, indexer: PoolIndexer | None, config: IndexerConfig, block: int, size: int
    ) -> None:
        self.attn = attn
        self._block = block
        self._has_indexer = indexer is not None
        if indexer is not None:
            self.indexer = indexer
            self.indexer_compressor_gate = Linear(size, config.head_size)
            self.indexer_compressor_ape = _Places(block, config.head_size)

    def __call__(self, x: Tensor, history: SparseHistory, cache: RecurrentLayer | None) -> Tensor:
        """`cache`: what the pools keep of earlier tokens."""
        latents = self.attn.query_latents(x)
        if cache is not None:
            self.indexer.choose_pools(x, latents, history, partial(self._pooled, x, cache), self._block)
        return self.attn(x, None, history, latents=latents)

    def _pooled(self, x: Tensor, cache: RecurrentLayer, keys: Tensor) -> Tensor:
        places = self.indexer_compressor_ape.weight.elements
        states, rows = cache.states[0], cache.rows[0]
        return ops.pooling(keys, self.indexer_compressor_gate(x), places, states, rows, cache.segments)


class Layer(llama.Layer):
    def __init__(
        self,
        config: DecoderConfig,
        attn: Callable[..., Tensor],
        ffn: llama.FeedForward,
        streams: ManifoldConfig,
    ) -> None:
        super().__init__(config, attn, ffn)
        self.attn_streams = ManifoldConnection("hc_attn", streams)
        self.ffn_streams = ManifoldConnection("hc_ffn", streams)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, *weights = self.attn_streams.read(x)
        h, x, *weights = output_rows(outputs, self.attn(self.attn_norm(h), *context), x, *weights)
        x = self.attn_streams.write(x, h, *weights)
        h, *weights = self.ffn_streams.read(x)
        return self.ffn_streams.write(x, self.ffn(self.ffn_norm(h)), *weights)


class Model(HybridModel, deepseek2.Model):
    """The caches after those of the layers are, for each indexer: its keys, and what its pools keep."""

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        config = llama.Model.read_config(self, file)
        self._streams = ManifoldConfig.read(file, config.eps)
        return latent_config(file, replace(config, rope=replace(config.rope, dims=0)))

    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, delta = self.config, KimiDeltaConfig.read(file, self.config.num_heads)
        bound = file.get(f"{file.architecture}.kda.gate_lower_bound", float)
        return lambda: DeltaAttention(c.hidden_size, c.eps, delta, bound), delta.kind()

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        self._indexer, self._block = IndexerConfig.read(file), _block(file)
        layers = super().layers(file)
        types = file.get(f"{file.architecture}.attention.indexer.types", list[bool], None)
        own = [types is None or bool(types[index]) for index in range(len(layers))]
        self._has_indexer = tuple(
            not recurrent and has for recurrent, has in zip(self._is_recurrent, own, strict=True)
        )
        attending = [has for recurrent, has in zip(self._is_recurrent, own, strict=True) if not recurrent]
        if attending and not attending[0]:
            raise ModelError(f"{file.path}: the first attending layer has no indexer that it could share")
        for index, layer in enumerate(layers):
            if not self._is_recurrent[index]:
                layer.attn = self._attention(file, own[index])
            layer.ffn = self._feed_forward(file, index, isinstance(layer.ffn, SwiGLU))
        return layers

    def _attention(self, file: GGUFFile, has_indexer: bool) -> Attention:
        c, rank = self.config, file.get(f"{file.architecture}.attention.q_lora_rank", int)
        indexer = PoolIndexer(self._indexer, c.hidden_size, rank) if has_indexer else None
        attn = latent_attention(file, c, eps=c.eps)
        return Attention(attn, indexer, self._indexer, self._block, c.hidden_size)

    def _feed_forward(self, file: GGUFFile, layer: int, is_dense: bool) -> llama.FeedForward:
        own, shared = (_activation(file, layer, part) for part in ("exp", "shexp"))
        if is_dense:
            return SwiGLU(self.config.hidden_size, self.config.ffn_sizes[layer], shared)
        return experts(file, self.config, self.router(file), own, of_shared=shared)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return Layer(self.config, latent_attention(file, self.config), self.ffn(file), self._streams)

    def _index_kinds(self, hidden: int | None = None) -> list[LayerKind]:
        keys = Causal(self._indexer.kv_shape(None), AttentionSpan(hidden=hidden))
        return [keys, pooled(self._indexer.head_size, 1)]

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [*super().layer_kinds(), *self._index_kinds() * sum(self._has_indexer)]

    def embed_nextn(self, inputs: Inputs) -> Tensor:
        return super().embed(inputs)

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        """Return a layer with an indexer, but without streams."""
        is_dense = dense_block(file, self.config, index) is not None
        feed_forward = self._feed_forward(file, index, is_dense)
        return llama.Layer(self.config, self._attention(file, has_indexer=True), feed_forward)

    def nextn_kinds(self, index: int) -> Sequence[LayerKind]:
        # Groups are chosen as a whole, so the keys of the first one include those of the first token.
        return [self.layer_kind(index), *self._index_kinds(hidden=0)]

    def nextn_context(self, inputs: Inputs, index: int, caches: Sequence[Any]) -> tuple[Any, ...]:
        cache, keys, pools = caches
        return SparseHistory(cache, keys), pools

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        """Return the state of the model, whose streams are averaged, or of a block."""
        return norm(x if x.shape[1] == self.config.hidden_size else self._mean(x))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False, has_bias=True)

    def rope(self) -> Rope:
        return NO_ROPE

    def embed(self, inputs: Inputs) -> Tensor:
        return streams_of(super().embed(inputs), self._streams.count)

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        return super().head(self._mean(x), softcap)

    def _mean(self, x: Tensor) -> Tensor:
        count, size = self._streams.count, self._streams.size
        return sum_of_streams(x, count, size) * (1 / count)

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        more = iter(caches[len(self.blk) :])
        earlier: SparseHistory | None = None
        x = self.embed(inputs)
        for index, (layer, cache) in enumerate(zip(self.blk, caches, strict=False)):
            context: tuple[Any, ...] = (cache,)
            if not self._is_recurrent[index]:
                keys, pools = (next(more), next(more)) if self._has_indexer[index] else (None, None)
                earlier = SparseHistory(cache, keys, earlier)
                context = (earlier, pools)
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))


def _block(file: GGUFFile) -> int:
    """Return the tokens of a group. Raises UnsupportedError for groups that do not fit."""
    key = f"{file.architecture}.attention.indexer.kpool"
    block = file.get(key, int)
    if block < 2 or (CHUNK % block and block % CHUNK):
        raise UnsupportedError(
            f"{file.path}: {key} = {block} is not supported; supported: numbers from 2 on that divide "
            f"{CHUNK} or are its multiples"
        )
    return block


def _activation(file: GGUFFile, layer: int, part: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the SwiGLU of a layer, with bounds if the file has some."""
    limits = file.get(f"{file.architecture}.swiglu_clamp_{part}", list[float], None)
    limit = 0.0 if limits is None or layer >= len(limits) else float(limits[layer])
    return partial(clamped, limit=limit) if limit > 0 else ops.swiglu
