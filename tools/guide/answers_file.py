"""The guide's file with its answers: a GGUF file inside of another one (chaski/runner/answers.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.formats.gguf import TensorInfo, open_gguf
from chaski.formats.gguf_writer import LazyTensor, Source, write_gguf
from chaski.formats.quant import QuantType
from chaski.runner.answers import ANSWERS
from chaski.text.tokenizer.vocabulary import TokenType
from tools.guide.encoder import EPS, HIDDEN_SIZE, NUM_HEADS
from tools.guide.pieces import BEGIN, END, LONGEST, Pieces
from tools.guide.topics import BOTH, DOUBT

__all__ = ["Choice", "put_answers"]

Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The answers, n of them, and what `AnswerTexts` has besides; rows (n, hidden size) and biases (n,)."""

    texts: Sequence[str]
    pages: Sequence[str]
    is_careful: Sequence[bool]
    rows: NDArray[np.float32]
    biases: NDArray[np.float32]
    sure: float
    careful: float
    likely: float

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file with the encoder says of them."""
        scales = np.abs(self.rows).max(axis=1) / 127
        return {
            "answers.texts": list(self.texts),
            "answers.pages": list(self.pages),
            "answers.is_careful": np.array(self.is_careful),
            "answers.rows": np.rint(self.rows / scales[:, None]).astype(np.int8).ravel(),
            "answers.scales": scales.astype(np.float32),
            "answers.biases": self.biases.astype(np.float32),
            **{f"answers.{name}": getattr(self, name) for name in ("sure", "careful", "likely")},
            "answers.both": BOTH,
            "answers.doubt": DOUBT,
        }


def put_answers(guide: Path, out: Path, weights: Weights, pieces: Pieces, choice: Choice) -> None:
    """Write the guide's file with these answers in the place of those that it has."""
    with TemporaryDirectory() as folder:
        encoder = Path(folder) / "answers.gguf"
        write_gguf(encoder, _described(weights) | _vocabulary(pieces) | choice.metadata, _tensors(weights))
        content = np.fromfile(encoder, np.uint8)
    with open_gguf(guide) as file:
        metadata = {key: value for key, value in file.metadata.items() if key != ANSWERS}
        tensors: dict[str, Source] = {name: _as_it_is(info) for name, info in file.tensors.items()}
        write_gguf(out, {**metadata, ANSWERS: content}, tensors)


def _described(weights: Weights) -> dict[str, Any]:
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))
    return {
        "general.architecture": "bert",
        "general.name": "chaski guide: answers",
        "general.license": "apache-2.0",
        "bert.block_count": layers,
        "bert.context_length": LONGEST,
        "bert.embedding_length": HIDDEN_SIZE,
        "bert.feed_forward_length": 4 * HIDDEN_SIZE,
        "bert.attention.head_count": NUM_HEADS,
        "bert.attention.layer_norm_epsilon": EPS,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,  # the mean
    }


def _vocabulary(pieces: Pieces) -> dict[str, Any]:
    kinds = [TokenType.CONTROL if token in (BEGIN, END) else TokenType.NORMAL for token in pieces.tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": pieces.tokens,
        "tokenizer.ggml.token_type": np.array([int(kind) for kind in kinds], np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in pieces.merges],
        "tokenizer.ggml.bos_token_id": pieces.tokens.index(BEGIN),
        "tokenizer.ggml.eos_token_id": pieces.tokens.index(END),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }


def _tensors(weights: Weights) -> dict[str, Source]:
    """Matrices in Q4_0, rows of positions in Q8_0, vectors in F32."""
    types = {"position_embd.weight": QuantType.Q8_0}
    types |= {name: QuantType.F32 for name, weight in weights.items() if weight.ndim == 1}
    return {name: (weight, types.get(name, QuantType.Q4_0)) for name, weight in weights.items()}


def _as_it_is(info: TensorInfo) -> LazyTensor:
    return LazyTensor(info.shape, info.type, lambda: [info.data])
