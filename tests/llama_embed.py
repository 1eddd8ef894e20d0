"""A tiny random model of the architecture `llama-embed`, and of others with its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from tests import families

DATA = families.DATA.parent / "llama_embed.npz"
CONFIG = {
    "vocab_size": 304,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


def converted(folder: Path, architecture: str, pooling: str | None = None) -> Path:
    rows, half, hidden = 32, 16, 44
    tensors = {"embed_tokens.weight": [304, rows], "norm.weight": [rows]}
    for layer in range(3):
        shapes = {"self_attn.q_proj": [rows, rows], "self_attn.k_proj": [half, rows]}
        shapes |= {"self_attn.v_proj": [half, rows], "self_attn.o_proj": [rows, rows]}
        shapes |= {
            "mlp.gate_proj": [hidden, rows],
            "mlp.up_proj": [hidden, rows],
            "mlp.down_proj": [rows, hidden],
        }
        shapes |= {"input_layernorm": [rows], "post_attention_layernorm": [rows]}
        tensors |= {f"layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    families.checkpoint(folder, {**CONFIG, "architectures": [architecture]}, tensors, 0)
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    convert(folder, folder / "model.gguf", "F32")
    return folder / "model.gguf"


def pairs(model: chaski.LLM) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield embeddings of texts of tokens, and those of transformers."""
    with np.load(DATA) as wanted:
        for length, vector in zip(wanted["lengths"], wanted["vectors"], strict=True):
            yield np.asarray(model.embed([wanted["ids"][:length].tolist()]))[0], vector
