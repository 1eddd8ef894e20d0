"""The encoder of T5 (Raffel et al. 2020) as used by Sentence-T5 and GTR: biases for distance buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import MLP, Embedding, Linear, Module, RMSNorm, SwiGLU, attention, output_rows
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig
from chaski.model.dense import DenseLayers
from chaski.model.input import Inputs
from chaski.model.pooling import Pooling
from chaski.same_bits import logarithm, logarithms

ARCHITECTURE = Architecture(
    "t5encoder",
    "Sentence-T5, GTR-T5",
    fixed={"hidden_activation": (*GELU, "relu", "gated-gelu")},
)


_FURTHEST = 128  # larger distances share one bucket; files do not store it


class RelativeBias(Module):
    """A bias for each bucket of distances and each head."""

    def __init__(self, buckets: int, heads: int) -> None:
        self.weight = Weight((buckets, heads), host=True)


class Attention(Module):
    """Attention without scaling of the scores; the query weights already contain the scale."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        size = config.num_heads * config.head_size
        self.attn_q = Linear(config.hidden_size, size)
        self.attn_k = Linear(config.hidden_size, size)
        self.attn_v = Linear(config.hidden_size, size)
        self.attn_o = Linear(size, config.hidden_size)

    def __call__(self, x: Tensor, bias: ops.DistanceBias, cache: LayerCache) -> Tensor:
        heads, size = self._config.num_heads, self._config.head_size
        q, k, v = (linear(x).reshape(heads, size) for linear in (self.attn_q, self.attn_k, self.attn_v))
        return self.attn_o(attention(q, k, v, cache, scale=1.0, bias=bias))


class Layer(Module):
    """A layer. Without biases for distances, it uses those of the first layer.

    The feed-forward block is gated since T5 1.1.
    """

    def __init__(self, config: DecoderConfig, buckets: int, is_gated: bool) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = Attention(config)
        if buckets:
            self.attn_rel_b = RelativeBias(buckets, config.num_heads)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        size, hidden = config.hidden_size, config.ffn_size
        self.ffn = SwiGLU(size, hidden, ops.geglu) if is_gated else MLP(size, hidden, ops.relu)

    def __call__(
        self, x: Tensor, bias: ops.DistanceBias, cache: LayerCache, outputs: Tensor | None
    ) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), bias, cache), x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class Encoder(Module):
    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        is_gated = "enc.blk.0.ffn_gate.weight" in file.tensors
        self.blk = [Layer(config, count, is_gated) for count in buckets(file, "enc", config.num_layers)]
        self.output_norm = RMSNorm(config.hidden_size, config.eps)

    def biases(self, positions: Tensor) -> list[ops.DistanceBias]:
        """Return each layer's bias for the distance of a key, for queries at `positions`."""
        return distance_biases(self.blk, positions)


class Model(Module):
    unused = ("output.weight",)

    def __init__(self, file: GGUFFile) -> None:
        self.config = config = DecoderConfig.read(file, is_causal=False, pooling=Pooling.MEAN)
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.enc = Encoder(file, config)
        self.dense = DenseLayers(file, config.hidden_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(KVShape(c.num_heads, c.head_size, c.head_size))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        biases = self.enc.biases(inputs.positions)
        x = self.token_embd(inputs.tokens)
        for layer, bias, cache in zip(self.enc.blk, biases, caches, strict=True):
            x = layer(x, bias, cache, inputs.outputs if layer is self.enc.blk[-1] else None)
        return self.dense(self.enc.output_norm(x))


def buckets(file: GGUFFile, part: str, num_layers: int) -> list[int]:
    """Return the number of buckets of distances that each layer of a part of the model has biases for.

    The first layer has some. The others share them, unless they have biases, too (UMT5).
    """
    count = file.get(f"{file.architecture}.attention.relative_buckets_count", int)
    has_own = f"{part}.blk.1.attn_rel_b.weight" in file.tensors
    return [count if has_own or not index else 0 for index in range(num_layers)]


def distance_biases(
    layers: Sequence[Layer], positions: Tensor, is_causal: bool = False
) -> list[ops.DistanceBias]:
    """Return each layer's bias for the distance of a key, for queries at `positions`."""
    found: list[ops.DistanceBias] = []
    for layer in layers:
        own = getattr(layer, "attn_rel_b", None)
        found.append(found[0] if own is None else _distance_bias(own, positions, is_causal))
    return found


def _distance_bias(biases: RelativeBias, positions: Tensor, is_causal: bool) -> ops.DistanceBias:
    array = biases.weight.array
    assert array is not None
    distances = np.arange(-_FURTHEST, _FURTHEST + 1)
    found = _causal_buckets(distances, len(array)) if is_causal else _buckets(distances, len(array))
    return ops.DistanceBias(np.ascontiguousarray(array[found].T), positions)


def _buckets(distances: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return the buckets of key positions relative to the query.

    Half of the buckets are for keys after the query.
    """
    half = count // 2
    return np.where(distances > 0, half, 0) + _buckets_of_lengths(np.abs(distances), half)


def _causal_buckets(distances: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return the buckets of key positions relative to the query, where no key after it is visible."""
    return _buckets_of_lengths(np.maximum(-distances, 0), count)


def _buckets_of_lengths(length: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return the buckets of distances in one direction.

    The first half of the buckets stands for single distances, the rest for ranges that grow with the
    distance.
    """
    exact = count // 2
    wide = np.maximum(length, 1) / exact
    found = logarithms(wide.ravel()).reshape(wide.shape)
    grown = exact + (found / logarithm(_FURTHEST / exact) * (count - exact)).astype(np.int64)
    return np.where(length < exact, length, np.minimum(grown, count - 1))
