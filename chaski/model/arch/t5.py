"""T5 (Raffel et al. 2020): an encoder reads the prompt, and a decoder attends to it and writes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, Encoder, EncoderLayer, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, attention
from chaski.model.arch import t5encoder
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs
from chaski.model.multimodal import EncoderShape, Image, PatchHistory

ARCHITECTURE = Architecture(
    "t5",
    "T5, Flan-T5, MT5, UMT5",
    notes="The encoder reads the prompt. The context holds the prompt, and as many tokens of the answer.",
    fixed={"hidden_activation": (*GELU, "relu", "gated-gelu")},
)


class CrossAttention(Module):
    """Attention with queries from the answer, and keys and values from the encoder's rows."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        size = config.num_heads * config.head_size
        self.cross_attn_q = Linear(config.hidden_size, size)
        self.cross_attn_k = Linear(config.hidden_size, size)
        self.cross_attn_v = Linear(config.hidden_size, size)
        self.cross_attn_o = Linear(size, config.hidden_size)

    def __call__(self, x: Tensor, prompt: EncoderLayer) -> Tensor:
        heads, size = self._config.num_heads, self._config.head_size
        q = self.cross_attn_q(x).reshape(heads, size)
        k = self.cross_attn_k(prompt.encoded).reshape(heads, size)
        v = self.cross_attn_v(prompt.encoded).reshape(heads, size)
        return self.cross_attn_o(attention(q, k, v, prompt, scale=1.0))


class Layer(t5encoder.Layer):
    """A layer of the encoder, with cross-attention after its attention."""

    unused = ("cross_attn_rel_b",)  # old files have it, and no program reads it

    def __init__(self, config: DecoderConfig, buckets: int, is_gated: bool) -> None:
        super().__init__(config, buckets, is_gated)
        self.cross_attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.cross = CrossAttention(config)

    def decode(self, x: Tensor, bias: ops.DistanceBias, cache: LayerCache, prompt: EncoderLayer) -> Tensor:
        x = x + self.attn(self.attn_norm(x), bias, cache)
        y = x.rows(prompt.attending)
        x = ops.scatter(x, y + self.cross(self.cross_attn_norm(y), prompt), prompt.attending)
        return x + self.ffn(self.ffn_norm(x))


class TextDecoder(Module):
    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        arch = file.architecture
        count = file.get(f"{arch}.decoder_block_count", int, config.num_layers)
        is_gated = "dec.blk.0.ffn_gate.weight" in file.tensors
        self.blk = [Layer(config, each, is_gated) for each in t5encoder.buckets(file, "dec", count)]
        self.output_norm = RMSNorm(config.hidden_size, config.eps)


class TextReader:
    """The encoder as a part that computes a prompt before the decoder begins."""

    def __init__(self, model: Model, start: int) -> None:
        self._model, self._start = model, start

    @property
    def shape(self) -> EncoderShape:
        c, most = self._model.config, self._model.context
        return EncoderShape(most, most, c.hidden_size, KVShape(c.num_heads, c.head_size, c.head_size))

    def read_text(self, token_ids: Sequence[int]) -> Image:
        count = len(token_ids)
        arrays = {
            "text": np.array(token_ids, np.int32),
            "places": np.arange(count, dtype=np.int32),
            "kept": np.arange(count, dtype=np.int32),
        }
        return Image(arrays, count, (1,), self._start)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        model = self._model
        biases = model.enc.biases(graph.input("places", (patches,), DType.I32))
        x = model.token_embd(graph.input("text", (patches,), DType.I32))
        for layer, bias in zip(model.enc.blk, biases, strict=True):
            x = layer(x, bias, history, None)
        return model.enc.output_norm(x).rows(graph.input("kept", (rows,), DType.I32))


class Model(Module):
    def __init__(self, file: GGUFFile) -> None:
        self.config = config = DecoderConfig.read(file)
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.enc = t5encoder.Encoder(file, config)
        self.dec = TextDecoder(file, config)
        self.output = Linear(config.hidden_size, config.vocab_size, optional=True)
        key = f"{file.architecture}.decoder_start_token_id"
        start = file.get(key, int, 0)
        if not 0 <= start < config.vocab_size:
            raise UnsupportedError(f"{file.path}: {key} is {start}, which is no token of the vocabulary")
        self.text_encoder = TextReader(self, start)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shape = KVShape(c.num_heads, c.head_size, c.head_size)
        return [Causal(shape), Encoder(shape, self.context, c.hidden_size)] * len(self.dec.blk)

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        biases = t5encoder.distance_biases(self.dec.blk, inputs.positions, is_causal=True)
        x = self.token_embd(inputs.tokens)
        for layer, bias, cache, prompt in zip(self.dec.blk, biases, caches[::2], caches[1::2], strict=True):
            x = layer.decode(x, bias, cache, prompt)
        x = self.dec.output_norm(x.rows(inputs.outputs))
        if self.output.weight.is_present:
            return self.output(x)
        return self.token_embd.project(x * self.config.hidden_size**-0.5)
