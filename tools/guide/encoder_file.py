"""Read and write the guide's encoder in a GGUF file, as a normal sentence model of chaski."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_inside
from chaski.formats.gguf_writer import Source
from chaski.formats.quant import QuantType
from chaski.guide.answers import ANSWERS
from chaski.text.tokenizer.vocabulary import TokenType
from tools.guide.encoder import EPS, HIDDEN_SIZE, NUM_HEADS, Encoder
from tools.guide.pieces import BEGIN, END, LONGEST, Pieces

__all__ = ["encoder_metadata", "encoder_tensors", "read_encoder"]

Weights = Mapping[str, NDArray[np.float32]]


def encoder_metadata(weights: Weights, pieces: Pieces) -> dict[str, Any]:
    """Return the metadata of the model and its vocabulary."""
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
        **_vocabulary(pieces),
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


def encoder_tensors(weights: Weights) -> dict[str, Source]:
    """Return matrices in Q4_0, rows of positions in Q8_0, vectors in F32."""
    types = {"position_embd.weight": QuantType.Q8_0}
    types |= {name: QuantType.F32 for name, weight in weights.items() if weight.ndim == 1}
    return {name: (weight, types.get(name, QuantType.Q4_0)) for name, weight in weights.items()}


def read_encoder(guide: Path, num_topics: int) -> tuple[Encoder, Pieces]:
    """Return the encoder of the guide's file without topics, and its pieces."""
    with open_inside(guide, ANSWERS) as file:
        merges = [tuple(pair.split(" ")) for pair in file.get("tokenizer.ggml.merges", list[str])]
        pieces = Pieces(list(file.get("tokenizer.ggml.tokens", list[str])), merges)
        encoder = Encoder(len(pieces.tokens), file.get("bert.block_count", int), num_topics)
        weights = {
            name: torch.from_numpy(dequantize(info.data, info.type, info.shape))
            for name, info in file.tensors.items()
        }
    missing, unknown = encoder.load_state_dict(weights, strict=False)
    assert not unknown
    assert set(missing) == {"topics.weight", "topics.bias"}
    return encoder, pieces
