"""Qwen 3.8 Flash-Next (Qwen Team 2026): Qwen 3.5 with experts, several residual streams and sparse attention.

Hyper-connections replace all norms of layers. Attention reads the blocks of tokens that an indexer chooses.
One layer adds embeddings of n-grams to its streams. A block for multi-token prediction reads and returns all
streams; vLLM's `qwen4_exp/nvidia/mtp.py` is its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerKind, RecurrentLayer, delayed_rows
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Module, MoEWithSharedExpert, Norm, SwiGLU, output_rows
from chaski.model.arch import qwen3next
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.delta_net import GatedDeltaNet
from chaski.model.hyper import HyperConfig, HyperConnection, StreamMixer, add_to_streams, streams_of
from chaski.model.input import Inputs
from chaski.model.nextn import StreamsHead
from chaski.model.ngrams import NgramConfig, NgramLayer, NgramTable
from chaski.model.sparse import BlockIndexer, IndexerConfig, SparseHistory, delayed_table, read_block

ARCHITECTURE = Architecture(
    "qwen4exp",
    "Qwen 3.8 Flash-Next",
    tools=("qwen3.5",),
    thinking=("qwen3.5",),
    notes="Text only. The block for multi-token prediction chooses tokens by its indexer, as in vLLM; "
    "llama.cpp's converter leaves it out.",
    reads=("embedding_length_per_layer_input", "full_attention_interval", "nextn_predict_layers"),
    fixed={"attention.causal": (True,)},
)


class DeltaNet(GatedDeltaNet):
    """A gated delta net whose gates are sigmoids."""

    def gated(self, gate: Tensor, y: Tensor) -> Tensor:
        return ops.multiply(ops.sigmoid(gate), y)


class SparseAttention(Module):
    """Gated attention to the tokens that an indexer chooses."""

    inline = True

    def __init__(self, config: DecoderConfig, indexer: BlockIndexer) -> None:
        self.attn = qwen3next.GatedAttention(config)
        self.indexer = indexer

    def __call__(
        self, x: Tensor, ropes: tuple[Tensor, Tensor], history: SparseHistory, cache: RecurrentLayer
    ) -> Tensor:
        self.indexer(x, ropes, history, cache)
        return self.attn(x, ropes[0], history)


class Layer(Module):
    """A layer. `ngrams` is None, or adds embeddings to the streams first."""

    def __init__(
        self,
        streams: HyperConfig,
        attn: SparseAttention | DeltaNet,
        ffn: SwiGLU | MoEWithSharedExpert,
        ngrams: NgramLayer | None,
    ) -> None:
        self.attn_streams = HyperConnection("hc_attn", streams)
        self.attn = attn
        self.ffn_streams = HyperConnection("hc_ffn", streams)
        self.ffn = ffn
        if ngrams is not None:
            self.ngrams = ngrams

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, weights = self.attn_streams.read(x)
        h, x, weights = output_rows(outputs, self.attn(h, *context), x, weights)
        x = add_to_streams(x, h, weights)
        h, weights = self.ffn_streams.read(x)
        return add_to_streams(x, self.ffn(h), weights)


class Block(Layer):
    """The layer of a block for multi-token prediction, with the mixer of its streams before logits."""

    nextn: StreamsHead


class Model(qwen3next.Model):
    """Caches: one for each layer, for each indexer its keys and those of a block, and for the first rotation.

    The last two are for the n-grams, if the file has some.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._streams = HyperConfig.read(file, DecoderConfig.read(file).eps)
        self._indexer, self._block = IndexerConfig.read(file), read_block(file)
        self._ngrams = NgramConfig.read(file)
        super().__init__(file)
        self.output_norm = StreamMixer("output_hc", self._streams)  # type: ignore[assignment]
        if self._ngrams is not None:
            table = file.tensors.get("per_layer_token_embd.weight")
            rows = self._ngrams.num_rows if table is None else table.shape[0]
            self.per_layer_token_embd = NgramTable(rows, self._ngrams.row_size)

    def layer(self, file: GGUFFile, index: int) -> Layer:  # type: ignore[override]
        c = self.config
        attn: SparseAttention | DeltaNet
        if self._is_linear[index]:
            attn = DeltaNet(c.hidden_size, c.eps, self._delta, frozenset())
        else:
            attn = self._sparse_attention()
        has_ngrams = self._ngrams is not None and index in self._ngrams.layers
        ngrams = NgramLayer(self._ngrams, self._streams) if self._ngrams is not None and has_ngrams else None
        return Layer(self._streams, attn, self.ffn(file), ngrams)

    def _sparse_attention(self) -> SparseAttention:
        c = self.config
        return SparseAttention(c, BlockIndexer(self._indexer, self._block, c.hidden_size, c.eps))

    def nextn_layer(self, file: GGUFFile, index: int) -> Block:  # type: ignore[override]
        block = Block(self._streams, self._sparse_attention(), self.ffn(file), None)
        block.nextn = StreamsHead(StreamMixer("hc_head", self._streams))
        return block

    @property
    def nextn_size(self) -> int:
        return self._streams.width

    def nextn_kinds(self, index: int) -> Sequence[LayerKind]:
        # Blocks of tokens are chosen as a whole, so the keys of the first one include the first token's.
        keys = Causal(self._indexer.kv_shape(None), AttentionSpan(hidden=0))
        return [self.layer_kind(index), keys, self._delayed_keys(), self._delayed_table()]

    def nextn_context(self, inputs: Inputs, index: int, caches: Sequence[Any]) -> tuple[Any, ...]:
        cache, keys, delayed, table = caches
        rope = inputs.rope_table(self._rope)
        return (rope, delayed_table(rope, self._block - 1, table)), SparseHistory(cache, keys), delayed

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        return x

    def nextn_rows(self, layer: Block, x: Tensor, norm: Norm) -> Tensor:
        return layer.nextn.head(x)

    def _delayed_keys(self) -> LayerKind:
        return delayed_rows(self._block - 1, self._indexer.head_size)

    def _delayed_table(self) -> LayerKind:
        return delayed_rows(self._block - 1, 2 * len(self._rope.frequencies))

    def layer_kinds(self) -> Sequence[LayerKind]:
        count = len(self._is_linear) - sum(self._is_linear)
        return [
            *super().layer_kinds(),
            *[Causal(self._indexer.kv_shape(None))] * count,
            *[self._delayed_keys()] * count,
            *([self._delayed_table()] if count else []),
            *(self._ngrams.kinds(self._streams.width) if self._ngrams is not None else ()),
        ]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        more = iter(caches[len(self.blk) :])
        attending = [index for index, is_linear in enumerate(self._is_linear) if not is_linear]
        histories = {index: SparseHistory(caches[index], next(more)) for index in attending}
        of_indexers: dict[int, RecurrentLayer] = {index: next(more) for index in attending}
        rope = inputs.rope_table(self._rope)
        ropes = (rope, delayed_table(rope, self._block - 1, next(more)) if attending else rope)
        embedded = inputs.with_images(self.token_embd(inputs.tokens))
        x = streams_of(embedded, self._streams.count)
        for index, layer in enumerate(self.blk):
            if hasattr(layer, "ngrams"):
                assert self._ngrams is not None
                rows = self.per_layer_token_embd.rows_of(self._ngrams, inputs.tokens, next(more))
                x = layer.ngrams(x, rows, next(more))
            is_linear = index not in histories
            context = (caches[index],) if is_linear else (ropes, histories[index], of_indexers[index])
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
