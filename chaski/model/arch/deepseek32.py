"""DeepSeek V3.2 (DeepSeek-AI 2025): DeepSeek V3 whose layers attend to the keys that an indexer chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerKind
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import DecoderLayer, LatentAttention, Module
from chaski.model.arch import deepseek2, llama
from chaski.model.architecture import Architecture
from chaski.model.input import Inputs
from chaski.model.latent import latent_attention
from chaski.model.sparse import Indexer, IndexerConfig, SparseHistory, sparse_histories

ARCHITECTURE = Architecture(
    "deepseek32",
    "DeepSeek V3.2",
    tools=("deepseek3.2",),
    thinking=("deepseek3.2",),
    notes="The keys of indexers are not turned by a Hadamard matrix before they are rounded, unlike in "
    "llama.cpp.",
    reads=("leading_dense_block_count", "nextn_predict_layers"),
)


class Attention(Module):
    """Latent attention to the keys that the layer's indexer chooses, or that of an earlier layer."""

    inline = True

    indexer: Indexer | None = None

    def __init__(self, attn: LatentAttention) -> None:
        self.attn = attn

    def __call__(self, x: Tensor, ropes: tuple[Tensor, Tensor], history: SparseHistory) -> Tensor:
        rope, of_indexer = ropes
        latents = self.attn.query_latents(x)
        if self.indexer is not None:
            self.indexer(x, latents, of_indexer, history)
        return self.attn(x, rope, history, latents=latents)


class Model(deepseek2.Model):
    """Layers with indexers; their caches follow those of the layers."""

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        self._indexer = IndexerConfig.read(file)
        self._has_indexer = tuple(self.with_indexer(file))
        if not self._has_indexer[0]:
            raise ModelError(f"{file.path}: the first layer has no indexer, so no layer can share its choice")
        layers = super().layers(file)
        rank = file.get(f"{file.architecture}.attention.q_lora_rank", int)
        for layer, has_own in zip(layers, self._has_indexer, strict=True):
            assert isinstance(layer.attn, Attention)
            if has_own:
                layer.attn.indexer = self.indexer(self._indexer, rank)
        return layers

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        layer = super().nextn_layer(file, index)
        assert isinstance(layer.attn, Attention)
        rank = file.get(f"{file.architecture}.attention.q_lora_rank", int)
        layer.attn.indexer = self.indexer(self._indexer, rank)
        return layer

    def nextn_kinds(self, index: int) -> Sequence[LayerKind]:
        return [self.layer_kind(index), self._index_kind()]

    def nextn_context(self, inputs: Inputs, index: int, caches: Sequence[Any]) -> tuple[Any, ...]:
        return self.positions_of(inputs, index), SparseHistory(*caches)

    def indexer(self, config: IndexerConfig, query_rank: int) -> Indexer:
        """Return the indexer of a layer."""
        return Indexer(config, self.config.hidden_size, query_rank)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, Attention(self.attention(file)), self.ffn(file))

    def attention(self, file: GGUFFile) -> LatentAttention:
        return latent_attention(file, self.config)

    def with_indexer(self, file: GGUFFile) -> list[bool]:
        """Return for each layer whether it has its own indexer."""
        return [True] * self.config.num_layers

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [*super().layer_kinds(), *[self._index_kind()] * sum(self._has_indexer)]

    def _index_kind(self) -> Causal:
        return Causal(self._indexer.kv_shape(self.index_rope()))

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        return super().__call__(inputs, sparse_histories(caches, self._has_indexer))

    def positions(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        return inputs.rope_table(self.rope()), inputs.rope_table(self.index_rope())

    def index_rope(self) -> Rope:
        """Return the rope of indexers, which rotates the first elements of a head."""
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)
