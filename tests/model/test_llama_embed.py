"""Llama Embed Nemotron: a Llama that embeds, in a file that says neither that nor how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import chaski
from chaski.convert.convert import convert
from tests import families

CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 304,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
SHAPES = {
    "input_layernorm": [32],
    "post_attention_layernorm": [32],
    "self_attn.q_proj": [32, 32],
    "self_attn.k_proj": [16, 32],
    "self_attn.v_proj": [16, 32],
    "self_attn.o_proj": [32, 32],
    "mlp.gate_proj": [40, 32],
    "mlp.up_proj": [40, 32],
    "mlp.down_proj": [32, 40],
}
TENSORS = {
    **{f"layers.{layer}.{name}.weight": shape for layer in range(2) for name, shape in SHAPES.items()},
    "embed_tokens.weight": [304, 32],
    "norm.weight": [32],
}


def vectors(folder: Path, settings: dict[str, Any]) -> Any:
    families.checkpoint(folder, CONFIG | settings, TENSORS, seed=1)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    convert(folder, folder / "model.gguf", "F32")
    with chaski.load(folder / "model.gguf", context=64, threads=1) as model:
        return np.asarray(model.embed(["one text", "and another, longer one"]))


def test_its_vectors_are_those_of_a_llama_whose_file_says_how_to_embed(tmp_path: Path) -> None:
    own = vectors(tmp_path / "own", {"architectures": ["LlamaBidirectionalModel"], "pooling": "avg"})
    llama = vectors(tmp_path / "llama", {"architectures": ["LlamaModel"], "is_causal": False})
    causal = vectors(tmp_path / "causal", {"architectures": ["LlamaModel"]})
    np.testing.assert_array_equal(own, llama)
    assert np.abs(own - causal).max() > 0.01
