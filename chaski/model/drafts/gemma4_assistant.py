"""Gemma 4's assistant (Google 2026): layers that attend to the keys and values of their target.

It reads the embedding of the last token and the target's hidden state before it, proposes a token, and
continues from its own state, projected to the size of the target's. It stores nothing, so its position stays
that of the sequence's next token however many tokens it has proposed. The assistants of E2B and E4B group
their vocabulary in clusters; files of llama.cpp's converter contain none, and then all tokens get logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Cache, CacheSize, Causal, LayerKind
from chaski.kvcache.part import StoredPart
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, RopeFactors
from chaski.model.arch.gemma4.attention import SharedAttention
from chaski.model.arch.gemma4.text import Layer, Model, local_config
from chaski.model.architecture import GELU, Architecture
from chaski.model.attached import StepDraft, Target
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.input import HiddenStates, Inputs
from chaski.model.proposing import ProposalInputs, ProposingCost, ProposingProgram, layer_bytes, output_bytes
from chaski.model.token_choice import Clusters, NearClusters

ARCHITECTURE = Architecture(
    "gemma4-assistant",
    "Gemma 4 assistants",
    reads=(
        "attention.key_length_swa",
        "attention.shared_kv_layers",
        "attention.sliding_window",
        "attention.value_length_swa",
        "embedding_length_out",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
        "nextn_predict_layers",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    ),
    fixed={"hidden_activation": GELU},
)


__all__ = ["Draft"]

_ORDERING = "masked_embd_ordering"
_NEAREST = 32


class Projections(Module):
    """The projections from the target's states to the assistant's, and back."""

    def __init__(self, target_size: int, size: int) -> None:
        self.pre_projection = Linear(2 * target_size, size)
        self.post_projection = Linear(size, target_size)


class Draft(StepDraft):
    """The assistant. Each layer reads the last storing target layer that, like it, has a window or none."""

    clusters: Clusters | None = None
    blk: list[Layer]

    def __init__(self, file: GGUFFile, target: Target) -> None:
        super().__init__(file, target)
        self._own = config = DecoderConfig.read(file)
        self._near = local_config(file, config)
        self.hidden_size = target.hidden_size
        self._check()
        self.nextn = Projections(self.hidden_size, config.hidden_size)
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.output_norm = RMSNorm(config.hidden_size, config.eps)
        self.rope_freqs = RopeFactors(config.rope.dims)
        self.blk = []
        window = file.get(f"{file.architecture}.attention.sliding_window", int)
        near = sliding_layers(file, config.num_layers, 0)
        for is_near, ffn_size in zip(near, config.ffn_sizes, strict=True):
            sized = replace(self._near if is_near else config, ffn_sizes=(ffn_size,))
            self.blk.append(Layer(sized, SharedAttention(sized), window if is_near else None, 0))
        self._read_layers = {layer.window is None: self._layer_that_stores(layer) for layer in self.blk}
        if _ORDERING in file.tensors:
            self.unused = (_ORDERING,)
            self.masked_embd_centroids, self.clusters = self._read_clusters()

    def layer_kinds(self) -> Sequence[LayerKind]:
        return []

    @property
    def proposing_layers(self) -> Sequence[int]:
        return list(self._read_layers.values())

    def store(self, inputs: Inputs, hidden: HiddenStates, caches: Sequence[Any]) -> Tensor:
        assert hidden.last is not None
        return self._target.output_norm(hidden.last)

    def propose(self, inputs: ProposalInputs, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return states and logits, or where it has clusters the rows that these are computed from."""
        size = self.hidden_size
        embedded = self.target.embedded(inputs.tokens) * size**0.5
        x = self.nextn.pre_projection(ops.concat([(embedded, 0, 1), (inputs.hidden, size, 1)]))
        stored = dict(zip(self._read_layers, caches, strict=True))
        ropes = {sees_all: ops.rope_table(inputs.positions, self._rope(sees_all)) for sees_all in stored}
        for layer in self.blk:
            sees_all = layer.window is None
            x = layer(x, ropes[sees_all], stored[sees_all], outputs=None)
        x = self.output_norm(x)
        hidden = self.nextn.post_projection(x)
        if self.clusters is not None:
            return hidden, x
        if inputs.most_tokens is None:
            return hidden, self.token_embd.project(x)
        return hidden, ops.first_outputs(x, self.token_embd.weight, inputs.most_tokens)

    @property
    def is_ordered(self) -> bool:
        return self.clusters is None

    def program(
        self, cache: Cache, backend: Backend, size: CacheSize, most_tokens: int | None
    ) -> ProposingProgram:
        part = StoredPart(cache, self.proposing_layers)
        choice = None if self.clusters is None else NearClusters(self.clusters, backend, size.sequences)
        return ProposingProgram(self, cache, backend, size.sequences, most_tokens, part, choice)

    def cost(self, output_share: float = 1.0) -> ProposingCost:
        if self.clusters is not None:
            output_share = self.clusters.nearest / len(self.clusters.tokens)
        target, file = self.target.file, self.file
        own = sum(layer_bytes(file, prefix) for prefix in ("blk.", "nextn.", "masked_embd_centroids."))
        own += output_share * output_bytes(file)
        return ProposingCost(token=own / (layer_bytes(target) + output_bytes(target)))

    @property
    def _target(self) -> Model:
        model = self.target.model
        if not isinstance(model, Model):
            raise self.misfit("it is an assistant of Gemma 4, but the model is not a Gemma 4")
        return model

    def _rope(self, sees_all: bool) -> Rope:
        if not sees_all:
            return self._near.rope.rope(neox=True)
        own = self.rope_freqs.weight.array
        return self._own.rope.rope(
            neox=True, factors=self._target.rope_freqs.weight.array if own is None else own
        )

    def _check(self) -> None:
        """Raise OptionError for a target of other sizes."""
        target = self._target
        size = self.file.get(f"{self.file.architecture}.embedding_length_out", int)
        if size != self.hidden_size:
            raise self.misfit(
                f"it reads hidden states of {size} numbers, but those of the model have {self.hidden_size}"
            )
        if self._own.vocab_size > target.config.vocab_size:
            raise self.misfit(
                f"it proposes {self._own.vocab_size} tokens, but the model has {target.config.vocab_size}"
            )

    def _layer_that_stores(self, layer: Layer) -> int:
        """Return the number of the target's last layer that stores keys for layers like this one."""
        kinds = self._target.layer_kinds()
        sees_all, c = layer.window is None, layer.config
        numbers = [
            number
            for number, kind in enumerate(kinds)
            if isinstance(kind, Causal) and (kind.span.window is None) is sees_all
        ]
        what = "all tokens" if sees_all else "a window"
        if not numbers:
            raise self.misfit(f"it reads a layer that sees {what}, but the model stores no such layer")
        kind = kinds[numbers[-1]]
        assert isinstance(kind, Causal)
        if (kind.shape.key_size, kind.shape.value_size) != (c.head_size, c.value_size):
            raise self.misfit(
                f"its heads in layers that see {what} have {c.head_size} elements, but those of the model "
                f"have {kind.shape.key_size}"
            )
        if c.num_heads % kind.shape.heads:
            raise self.misfit(f"its {c.num_heads} heads cannot share {kind.shape.heads} key/value heads")
        return numbers[-1]

    def _read_clusters(self) -> tuple[Linear, Clusters]:
        """Return the output layer of clusters, and the clusters. Raises ModelError for invalid clusters."""
        file, info = self.file, self.file.tensors[_ORDERING]
        arch, size = file.architecture, self._own.hidden_size
        order = dequantize(info.data, info.type, info.shape).ravel().astype(np.int64)
        matrix = file.tensors.get("masked_embd_centroids.weight")
        count = matrix.shape[0] if matrix is not None else 0
        if not count or len(order) % count or not np.array_equal(np.sort(order), np.arange(len(order))):
            raise ModelError(
                f"{file.path}: tensor {_ORDERING} does not assign all tokens to {count} clusters"
            )
        if len(order) != self._own.vocab_size:
            raise ModelError(
                f"{file.path}: tensor {_ORDERING} contains {len(order)} of {self._own.vocab_size} tokens"
            )
        nearest = min(file.get(f"{arch}.centroid_top_k", int, _NEAREST), count)
        if nearest < 1:
            raise ModelError(f"{file.path}: {arch}.centroid_top_k is {nearest}; it must be at least 1")
        centroids = Linear(size, count)
        return centroids, Clusters(order.reshape(count, -1), centroids, self.token_embd, nearest)
