"""The mixtures against llama.cpp's own choices: run by hand, with `llama-quantize` on the path."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.errors import OptionError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.importance import Entry, ImportanceMatrix, write_importance
from chaski.formats.mixture import MIXTURES, Wishes
from chaski.formats.quant import QuantType
from chaski.formats.requantize import plan_types

pytestmark = pytest.mark.oracle

MODELS: dict[str, tuple[str, int, int, int, int]] = {
    "llama": ("llama", 24, 4, 4, 0),
    "grouped": ("llama", 17, 8, 2, 0),
    "70B": ("llama", 80, 8, 1, 0),
    "65B": ("llama", 80, 4, 4, 0),
    "eight experts": ("llama", 32, 8, 2, 8),
    "many experts": ("qwen3moe", 28, 4, 4, 128),
    "falcon": ("falcon", 32, 4, 4, 0),
}
ROW = 256


def write(path: Path, name: str, is_tied: bool) -> Path:
    architecture, layers, heads, kv_heads, experts = MODELS[name]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (32, ROW), "output_norm.weight": (ROW,)}
    if not is_tied:
        shapes["output.weight"] = (32, ROW)
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down"]
    if architecture == "falcon":
        matrices = ["attn_qkv", "attn_output", "ffn_up", "ffn_down"]
    for layer in range(layers):
        for matrix in matrices:
            is_of_experts = experts and matrix.startswith("ffn")
            shape: tuple[int, ...] = (2, 2, ROW) if is_of_experts else (2, ROW)
            shapes[f"blk.{layer}.{matrix}{'_exps' if is_of_experts else ''}.weight"] = shape
        shapes[f"blk.{layer}.ffn_gate_inp.weight"] = (4, ROW)
        shapes[f"blk.{layer}.odd.weight"] = (4, 96)
        shapes[f"blk.{layer}.odder.weight"] = (4, 40)
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": ROW,
        f"{architecture}.block_count": layers,
        f"{architecture}.feed_forward_length": ROW,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.attention.layer_norm_epsilon": 1e-5,
        "tokenizer.ggml.model": "no_vocab",
    }
    if experts:
        metadata |= {f"{architecture}.expert_count": experts, f"{architecture}.expert_used_count": 2}
        metadata |= {f"{architecture}.expert_feed_forward_length": ROW}
    random = np.random.default_rng(1)
    write_gguf(
        path,
        metadata,
        {n: (random.standard_normal(s).astype(np.float32), QuantType.F32) for n, s in shapes.items()},
    )
    return path


def chosen_by_llama(arguments: list[str], folder: Path) -> dict[str, str]:
    program = shutil.which("llama-quantize")
    if program is None:
        pytest.skip("llama-quantize is not on the path")
    out = folder / "theirs.gguf"
    *options, source, mixture = arguments
    done = subprocess.run(
        [program, *options, source, str(out), mixture], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with open_gguf(out) as file:
        return {name: tensor.type.name for name, tensor in file.tensors.items()}


def chosen_here(
    path: Path, mixture: str, wishes: Wishes, importance: ImportanceMatrix | None
) -> dict[str, str]:
    with open_gguf(path) as file:
        return {name: type.name for name, type in plan_types(file, mixture, wishes, importance).types.items()}


def importance_of(path: Path, folder: Path) -> ImportanceMatrix:
    """Return a matrix with the same importance for all columns of a model."""
    with open_gguf(path) as file:
        entries = {
            name: Entry(
                np.ones((int(np.prod(tensor.shape[:-2])), tensor.shape[-1]), np.float32),
                np.ones(int(np.prod(tensor.shape[:-2])), np.float32),
            )
            for name, tensor in file.tensors.items()
        }
    matrix = ImportanceMatrix(folder / "importance.gguf", entries, ["text"], 1, 512)
    write_importance(matrix)
    return matrix


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mixture", MIXTURES)
def test_every_mixture(tmp_path: Path, mixture: str, name: str, is_tied: bool) -> None:
    path = write(tmp_path / "model.gguf", name, is_tied)
    matrix = importance_of(path, tmp_path)
    try:
        ours = chosen_here(path, mixture, Wishes(), None)
    except OptionError:
        with pytest.raises(AssertionError, match="requires an i"):
            chosen_by_llama([str(path), mixture], tmp_path)
    else:
        assert ours == chosen_by_llama([str(path), mixture], tmp_path)
    theirs = chosen_by_llama(["--imatrix", str(matrix.path), str(path), mixture], tmp_path)
    assert chosen_here(path, mixture, Wishes(), matrix) == theirs


@pytest.mark.parametrize("is_tied", [False, True])
def test_wishes(tmp_path: Path, is_tied: bool) -> None:
    path = write(tmp_path / "model.gguf", "llama", is_tied)
    options = ["--output-tensor-type", "q5_0", "--token-embedding-type", "q4_1"]
    options += ["--tensor-type", "ffn_(up|down)=q8_0", "--tensor-type", r"blk\.[0-3]\.attn_v=q5_k"]
    wishes = Wishes(
        QuantType.Q5_0,
        QuantType.Q4_1,
        ((re.compile("ffn_(up|down)"), QuantType.Q8_0), (re.compile(r"blk\.[0-3]\.attn_v"), QuantType.Q5_K)),
    )
    for mixture in ("Q4_K_M", "Q3_K_M", "F16"):
        theirs = chosen_by_llama([*options, str(path), mixture], tmp_path)
        assert chosen_here(path, mixture, wishes, None) == theirs
    theirs = chosen_by_llama(["--pure", str(path), "Q4_K_M"], tmp_path)
    assert chosen_here(path, "Q4_K_M", Wishes(is_pure=True), None) == theirs
