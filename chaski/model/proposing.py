"""Proposing tokens from the hidden states of a model: the part that its own batches leave out, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.kvcache.part import CachePart
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.model.output_rows import HIDDEN
from chaski.model.registry import Model

__all__ = ["Proposing", "ProposingProgram", "proposing_cost", "proposing_of"]

F32 = npt.NDArray[np.float32]

_LARGE_VOCABULARY = 1 << 15


class Proposing(Model, Protocol):
    """A model that can propose tokens. Its graph has the output `HIDDEN`, rows of `hidden_size`."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def proposing_layers(self) -> Sequence[int]:
        """The numbers of the layers whose caches `propose` takes; none where the file has no such block."""

    def leave_out_proposing(self) -> None:
        """Leave out the block that proposes. Called before weights are placed."""

    def propose(
        self,
        tokens: Tensor,
        positions: Tensor,
        hidden: Tensor,
        caches: Sequence[Any],
        most_tokens: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Record: tokens, and the hidden state before each (n, size) -> theirs, and logits.

        They are of the first `most_tokens` of the vocabulary, or all.
        """


def proposing_of(model: Model) -> Proposing | None:
    """The model, if it can propose tokens."""
    proposing: Any = model
    return proposing if getattr(model, "proposing_layers", ()) else None


def num_common_tokens(vocab_size: int) -> int | None:
    """Return how many tokens, the first ones, are common; None for a vocabulary that is all small.

    Byte-pair encoding makes tokens in the order of their frequency. Among 250,000 tokens, a quarter has
    nearly all of a text in English, or of code, and its logits cost a quarter.
    """
    return None if vocab_size < _LARGE_VOCABULARY else vocab_size // 4 // 256 * 256


def proposing_cost(model: Proposing, file: GGUFFile, output_share: float = 1.0) -> float:
    """Return the share of the bytes that a token reads of the whole model, that one to propose reads.

    They are what decoding takes its time for. Of experts, a token reads those that it uses, and to propose
    one it reads `output_share` of the output layer.
    """
    arch, block = file.architecture, f"blk.{model.proposing_layers[0]}."
    used = file.get(f"{arch}.expert_used_count", int, 0) / (file.get(f"{arch}.expert_count", int, 0) or 1)
    output = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    own = output_share * file.tensors[output].nbytes
    whole = float(file.tensors[output].nbytes)
    for name, info in file.tensors.items():
        if name.startswith("blk."):
            num_bytes = info.nbytes * (used if "_exps." in name else 1)
            whole += num_bytes
            own += num_bytes if name.startswith(block) else 0
    return own / whole


class ProposingProgram:
    """A plan that proposes a token behind each of up to `sequences` tokens of different sequences.

    `most_tokens`: only the first ones of the vocabulary are proposed.
    """

    def __init__(
        self,
        model: Proposing,
        cache: Cache,
        backend: Backend,
        sequences: int,
        most_tokens: int | None = None,
    ) -> None:
        self.cache = CachePart(cache, model.proposing_layers)
        self.most_tokens = most_tokens or model.config.vocab_size
        graph, tokens = Graph(), Dim("tokens", sequences)
        hidden, logits = model.propose(
            graph.input("tokens", (tokens,), DType.I32),
            graph.input("positions", (tokens,), DType.I32),
            graph.input(HIDDEN, (tokens, model.hidden_size), DType.F32),
            self.cache.record(graph, tokens),
            most_tokens,
        )
        graph.output(HIDDEN, hidden)
        graph.output("top", ops.top_k(logits, graph.input("counts", (tokens,), DType.I32), 1))
        self._plan = backend.compile(graph)

    def step(self, batch: Batch, hidden: F32) -> tuple[list[int], F32]:
        """Compute a batch -> the top tokens behind its tokens, and their hidden states, a view.

        It stays in the cache until that takes it back.
        """
        values = {
            **self.cache.start_forward(batch),
            "tokens": batch.tokens,
            "positions": batch.positions,
            HIDDEN: hidden,
            "counts": np.ones(len(batch.tokens), np.int32),
        }
        launch = self._plan.launch(values)
        top = launch.rows("top").reshape(-1, 2, 1)[:, 1, 0].astype(int)
        return top.tolist(), launch.rows(HIDDEN)
