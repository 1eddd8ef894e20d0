"""Qwen 3.8 Flash-Next (Qwen Team 2026): Qwen 3.5 with experts, several residual streams and sparse attention.

Hyper-connections replace all norms of layers. Attention reads the blocks of tokens that an indexer chooses.
One layer adds embeddings of n-grams to its streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerKind, RecurrentLayer, delayed_rows
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Module, MoEWithSharedExpert, SwiGLU, output_rows
from chaski.model.arch import qwen3next
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.delta_net import GatedDeltaNet
from chaski.model.hyper import HyperConfig, HyperConnection, StreamMixer, add_to_streams, streams_of
from chaski.model.input import Inputs
from chaski.model.ngrams import NgramConfig, NgramLayer, NgramTable
from chaski.model.sparse import BlockIndexer, IndexerConfig, SparseHistory, delayed_table, read_block

ARCHITECTURE = Architecture(
    "qwen4exp",
    "Qwen 3.8 Flash-Next",
    tools=("qwen3.5",),
    thinking=("qwen3.5",),
    notes="Text only.",
    reads=("embedding_length_per_layer_input", "full_attention_interval"),
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


class Model(qwen3next.Model):
    """Caches: one for each layer, for each indexer its keys and those of a block, and for the first rotation.

    The last two are for the n-grams, if the file has some.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._streams = HyperConfig.read(file, DecoderConfig.read(file).eps)
        self._indexer, self._block = IndexerConfig.read(file), read_block(file)
        self._ngrams = NgramConfig.read(file)
        super().__init__(file)
        if self._ngrams is not None:
            table = file.tensors.get("per_layer_token_embd.weight")
            rows = self._ngrams.num_rows if table is None else table.shape[0]
            self.per_layer_token_embd = NgramTable(rows, self._ngrams.row_size)

    def norm(self, config: DecoderConfig) -> StreamMixer:  # type: ignore[override]
        return StreamMixer("output_hc", self._streams)

    def layer(self, file: GGUFFile, index: int) -> Layer:  # type: ignore[override]
        c = self.config
        attn: SparseAttention | DeltaNet
        if self._is_linear[index]:
            attn = DeltaNet(c.hidden_size, c.eps, self._delta, frozenset())
        else:
            attn = SparseAttention(c, BlockIndexer(self._indexer, self._block, c.hidden_size, c.eps))
        has_ngrams = self._ngrams is not None and index in self._ngrams.layers
        ngrams = NgramLayer(self._ngrams, self._streams) if self._ngrams is not None and has_ngrams else None
        return Layer(self._streams, attn, self.ffn(file), ngrams)

    def layer_kinds(self) -> Sequence[LayerKind]:
        count = len(self._is_linear) - sum(self._is_linear)
        before = self._block - 1
        table = delayed_rows(before, 2 * len(self._rope.frequencies))
        return [
            *super().layer_kinds(),
            *[Causal(self._indexer.kv_shape(None))] * count,
            *[delayed_rows(before, self._indexer.head_size)] * count,
            *([table] if count else []),
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
