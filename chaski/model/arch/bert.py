"""BERT and RoBERTa (Devlin et al. 2018; Liu et al. 2019): bidirectional attention, norms after the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import MLP, Embedding, Joined, LayerNorm, Linear, Module, attention, output_rows
from chaski.model.architecture import GELU, Architecture
from chaski.model.classifier import Classifier
from chaski.model.config import DecoderConfig
from chaski.model.dense import DenseLayers
from chaski.model.input import Inputs
from chaski.model.pooling import Pooling

ARCHITECTURE = Architecture(
    "bert",
    "BERT, RoBERTa, XLM-RoBERTa, all-MiniLM, BGE, E5, GTE, mxbai-embed, Snowflake Arctic Embed; "
    "cross-encoders: MS MARCO MiniLM, BGE Reranker",
    fixed={"hidden_activation": GELU},
)


class TokenTypes(Module):
    """Token type embeddings: type 0, and type 1 for the second text of a pair in a model that ranks."""

    def __init__(self, file: GGUFFile, size: int, ranks: bool) -> None:
        stored = file.tensors.get("token_types.weight")
        count = stored.shape[0] if stored else 1
        self.are_told = ranks and count > 1
        self.weight = Weight((count, size), optional=True, plain=not self.are_told)

    def __call__(self, x: Tensor, types: Tensor | None) -> Tensor:
        if not self.weight.is_present:
            return x
        return ops.add_vector(x, self.weight) if types is None else x + ops.embedding(types, self.weight)


class Attention(Module):
    """Bidirectional attention. Positions are in the embeddings, in a `rope` or in a `bias` of the scores."""

    inline = True
    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))

    def __init__(self, config: DecoderConfig) -> None:
        size = config.num_heads * config.head_size
        self._config = config
        self.attn_q = Linear(config.hidden_size, size)
        self.attn_k = Linear(config.hidden_size, size)
        self.attn_v = Linear(config.hidden_size, size)
        self.attn_output = Linear(size, config.hidden_size)

    def __call__(
        self, x: Tensor, rope: Tensor | None, cache: LayerCache, bias: ops.DistanceBias | None = None
    ) -> Tensor:
        heads, size = self._config.num_heads, self._config.head_size
        q, k = (each.reshape(heads, size) for each in self.queries_and_keys(x))
        v = self.attn_v(x).reshape(heads, size)
        if rope is not None:
            q, k = ops.rope(q, rope), ops.rope(k, rope)
        return self.attn_output(attention(q, k, v, cache, scale=size**-0.5, bias=bias))

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attn_q(x), self.attn_k(x)


class Layer(Module):
    """A layer that normalizes after each sum. `attn` takes the states and `context`, its other inputs."""

    def __init__(self, config: DecoderConfig, attn: Attention, ffn: Callable[[Tensor], Tensor]) -> None:
        self.attn = attn
        self.attn_output_norm = LayerNorm(config.hidden_size, config.eps)
        self.ffn = ffn
        self.layer_output_norm = LayerNorm(config.hidden_size, config.eps)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(x, *context), x)
        x = self.attended(x, h)
        return self.layer_output_norm(x + self.ffn(x))

    def attended(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the normalized sum of the states `x` and `h`, the output of attention for them."""
        return self.attn_output_norm(x + h)


class TextEncoder(Module):
    """The base of these models. Its tokens have no positions; a subclass adds them or sets a `rope`."""

    rope: Rope | None = None

    def __init__(self, file: GGUFFile) -> None:
        self.config = config = DecoderConfig.read(file, eps="layer_norm_epsilon", is_causal=False)
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        ranks = config.pooling is Pooling.RANK
        self.token_types = TokenTypes(file, config.hidden_size, ranks)
        self.tells_types = self.token_types.are_told
        if ranks:
            self.cls = Classifier(config)
        self.token_embd_norm = LayerNorm(config.hidden_size, config.eps)
        self.dense = DenseLayers(file, config.hidden_size)
        self.blk = [self.layer(file, index) for index in range(config.num_layers)]

    def layer(self, file: GGUFFile, index: int) -> Layer:
        return Layer(self.config, Attention(self.config), self.ffn(file, index))

    def ffn(self, file: GGUFFile, index: int) -> Callable[[Tensor], Tensor]:
        """Return the feed-forward block of layer `index`."""
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.gelu)

    def embed(self, inputs: Inputs) -> Tensor:
        return self.token_types(self.token_embd(inputs.tokens), inputs.types)

    def bias(self, inputs: Inputs) -> ops.DistanceBias | None:
        """Return the term that is added to the scores for the distance of a key, or None."""
        return None

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(KVShape(c.num_heads, c.head_size, c.head_size, self.rope))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = None if self.rope is None else ops.rope_table(inputs.positions, self.rope)
        x = self.token_embd_norm(self.embed(inputs))
        bias = self.bias(inputs)
        for layer, cache in zip(self.blk, caches, strict=True):
            outputs = inputs.outputs if layer is self.blk[-1] else None
            x = layer(x, rope, cache, bias, outputs=outputs)
        return self.cls(x) if self.config.pooling is Pooling.RANK else self.dense(x)


class Model(TextEncoder):
    """BERT: an embedding for each position and no other position information."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        self.max_context = self.config.context_length
        self.position_embd = Embedding(self.max_context, self.config.hidden_size)

    def embed(self, inputs: Inputs) -> Tensor:
        return super().embed(inputs) + self.position_embd(inputs.positions)
