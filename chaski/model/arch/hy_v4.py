"""Hy 4 (Tencent 2026): GLM 5.2's sparse attention with gates and sinks, and several residual streams."""

from __future__ import annotations

from functools import partial
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import (
    DecoderLayer,
    GatedLatentAttention,
    LatentAttention,
    LatentConfig,
    Norm,
    SwiGLU,
    output_rows,
)
from chaski.model.arch import deepseek32, glm_dsa, gpt_oss, llama
from chaski.model.arch.maple import clamped
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import experts
from chaski.model.hyper import (
    IndependentConfig,
    IndependentConnection,
    IndependentSum,
    add_to_streams,
    streams_of,
)
from chaski.model.input import Inputs
from chaski.model.latent import latent_attention
from chaski.model.sparse import Indexer, IndexerConfig, TailIndexer

ARCHITECTURE = Architecture(
    "hy_v4",
    "Hy 4",
    tools=("hy4",),
    thinking=("hy4",),
    notes="Text only. The rope turns pairs of the halves, as in transformers; in llama.cpp it turns adjacent "
    "elements, and blocks for multi-token prediction are not read.",
    reads=("leading_dense_block_count", "nextn_predict_layers", "swiglu_clamp_exp"),
)


class Attention(GatedLatentAttention):
    """Latent attention with gates and sinks."""

    def add_matrices(self, c: LatentConfig) -> None:
        super().add_matrices(c)
        self.attn_sinks = gpt_oss.Sinks(c.heads)

    def sinks(self) -> Weight:
        return self.attn_sinks.weight


class Layer(llama.Layer):
    """A layer whose blocks read sums of the streams."""

    def __init__(
        self,
        config: DecoderConfig,
        attn: deepseek32.Attention,
        ffn: llama.FeedForward,
        streams: IndependentConfig,
    ) -> None:
        super().__init__(config, attn, ffn)
        self.attn_streams = IndependentConnection("hc_attn", streams)
        self.ffn_streams = IndependentConnection("hc_ffn", streams)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, weights = self.attn_streams.read(x)
        h, x, weights = output_rows(outputs, self.attn(self.attn_norm(h), *context), x, weights)
        x = add_to_streams(x, h, weights)
        h, weights = self.ffn_streams.read(x)
        return add_to_streams(x, self.ffn(self.ffn_norm(h)), weights)


class Model(glm_dsa.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        self.output_streams = IndependentSum("output_hc", self._streams)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        config = super().read_config(file)
        self._streams = IndependentConfig.read(file, config.eps)
        return config

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        return [self._limited(file, *each) for each in enumerate(super().layers(file))]

    def _limited(self, file: GGUFFile, index: int, layer: DecoderLayer) -> DecoderLayer:
        """Bound the activations of the experts of a layer; a block has the limit of the last layer."""
        limits = file.get(f"{file.architecture}.swiglu_clamp_exp", list[float], None)
        limit = 0.0 if limits is None else float(limits[min(index, len(limits) - 1)])
        if limit and not isinstance(layer.ffn, SwiGLU):
            layer.ffn = experts(file, self.config, self.router(file), partial(clamped, limit=limit))
        return layer

    def layer(self, file: GGUFFile) -> DecoderLayer:
        attention = deepseek32.Attention(self.attention(file))
        return Layer(self.config, attention, self.ffn(file), self._streams)

    def embed_nextn(self, inputs: Inputs) -> Tensor:
        return super().embed(inputs)

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        """Return a layer with an indexer, but without streams."""
        layer = self._limited(file, index, super().nextn_layer(file, index))
        return llama.Layer(self.config, layer.attn, layer.ffn)

    def nextn_state(self, x: Tensor, norm: Norm) -> Tensor:
        """Return the state of the model, whose streams are summed, or of a block."""
        return norm(x if x.shape[1] == self.config.hidden_size else self.output_streams(x))

    def attention(self, file: GGUFFile) -> LatentAttention:
        return latent_attention(file, self.config, Attention)

    def indexer(self, config: IndexerConfig, query_rank: int) -> Indexer:
        return TailIndexer(config, self.config.hidden_size, query_rank, self.config.eps)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)

    def embed(self, inputs: Inputs) -> Tensor:
        return streams_of(super().embed(inputs), self._streams.count)

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        return super().head(self.output_streams(x), softcap)
