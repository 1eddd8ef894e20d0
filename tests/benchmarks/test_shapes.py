"""Files of the benchmarks' shapes: the models load, compute, and stay within their size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chaski
from benchmarks.make_models import SHAPES, num_products, weight_bytes, write
from benchmarks.quant_mix import type_of
from benchmarks.rows import ROWS
from benchmarks.shapes import Shape, Vocabulary, gemma3, gptoss
from benchmarks.shapes.gemma3 import Gemma3
from benchmarks.shapes.gemma4 import Gemma4
from benchmarks.shapes.gptoss import GptOss
from benchmarks.shapes.lfm2 import Lfm2
from benchmarks.shapes.qwen35 import Qwen35
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import row_bytes

_MOST = 2**31
# Llama's files contain whole models.
_CUT = sorted({(row.shape, row.type) for row in ROWS.values() if not row.shape.startswith("llama")})
_UNMEASURED = [(name, "Q4_K_M") for name in ("gemma-3-1b", "gemma-3-4b", "lfm2-1.2b")]
_UNMEASURED.append(("gpt-oss-20b", "MXFP4"))
# All features of the shapes with small sizes; a vocabulary is a share of the real one.
_DELTA = Qwen35(4, 500, 256, 1, 256, num_heads=4, head_dim=32, key_heads=2, value_heads=4, delta_size=64)
_GPT_OSS = GptOss(2, 250, 64, 4, 2, 32, 16, 4, 2, 96)
_SMALL: dict[str, Shape] = {
    "qwen3.5": _DELTA,
    "qwen3.5 with experts": replace(_DELTA, num_experts=8, num_used=2, is_tied=False),
    "gemma 4": Gemma4(
        4, 500, (1, 3), 256, 4, 1, 1, 256, 16, num_shared=2, per_layer=32, near_dim=32, full_dim=64
    ),
    "gemma 4 with experts": Gemma4(
        2, 250, (1,), 256, 4, 2, 1, 96, 16, 0, 0, 4, 2, 96, has_full_values=False, near_dim=32, full_dim=64
    ),
    "gemma 3": Gemma3(6, 600, 262144, 256, 4, 2, 256, 16, 64, rope_factor=8.0, head_dim=32),
    "lfm 2": Lfm2(3, (1,), 256, 4, 2, 256, Vocabulary("lfm2", 2048, 32, 2048)),
    "gpt-oss": _GPT_OSS,
}


@pytest.mark.parametrize("type_name", ["Q4_K_M", "IQ4_XS", "MXFP4"])
@pytest.mark.parametrize("name", _SMALL)
def test_a_file_of_a_small_shape_computes(name: str, type_name: str, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    shape = _SMALL[name]
    write(path, shape, type_name, name)
    with chaski.load(path, context=64, threads=1) as model:
        logits = model.logits(list(range(20)))
    assert np.isfinite(logits).all()
    assert logits.shape[-1] == shape.vocabulary.size
    assert np.ptp(logits) > 0


@pytest.mark.parametrize(("shape_name", "type_name"), _CUT + _UNMEASURED)
def test_no_file_is_larger_than_two_gib(shape_name: str, type_name: str) -> None:
    shape = SHAPES[shape_name]
    total = sum(
        matrix.num_rows * row_bytes(type_of(matrix, type_name, shape), matrix.columns)
        for matrix in shape.matrices()
    )
    assert total < _MOST


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (SHAPES["gemma-3-1b"], 999_885_952),
        (replace(gemma3.SHAPES["gemma-3-4b"], num_layers=34), 3_880_263_168),
        (SHAPES["lfm2-1.2b"], 1_170_340_608),
        (replace(gptoss.SHAPES["gpt-oss-20b"], num_layers=24), 20_914_757_184),
    ],
)
def test_a_whole_model_has_the_parameters_of_the_real_one(shape: Shape, parameters: int) -> None:
    vectors = sum(values.size for _, values in shape.vectors(np.random.default_rng(1)))
    assert vectors + sum(matrix.num_rows * matrix.columns for matrix in shape.matrices()) == parameters


def test_a_token_reads_only_the_experts_that_it_uses() -> None:
    shape = SHAPES["qwen3.5-35b-a3b"]
    layers, head = num_products(shape)
    expert = 3 * 512 * 2048
    delta = 2048 * (8192 + 4096 + 2 * 32 + 4096)
    attention = 2048 * (2 * 4096 + 2 * 512 + 4096)
    assert layers == 3 * delta + attention + 4 * (8 + 1) * expert
    assert head == 24832 * 2048
    assert weight_bytes(shape, "F32") == 4 * (layers + head)


def test_types_follow_the_mix(tmp_path: Path) -> None:
    write(tmp_path / "mix.gguf", _DELTA, "Q4_K_M", "mix")
    types = {name: info.type.name for name, info in open_gguf(tmp_path / "mix.gguf").tensors.items()}
    assert types["token_embd.weight"] == "Q6_K"
    assert types["blk.0.attn_qkv.weight"] == "Q5_K"
    assert types["blk.0.ffn_down.weight"] == "Q4_K"
    assert types["blk.3.ffn_down.weight"] == "Q6_K"
    assert types["blk.0.ssm_conv1d.weight"] == "F32"


def test_experts_alone_have_mxfp4(tmp_path: Path) -> None:
    write(tmp_path / "experts.gguf", _GPT_OSS, "MXFP4", "experts")
    types = {name: info.type.name for name, info in open_gguf(tmp_path / "experts.gguf").tensors.items()}
    assert {name for name, kind in types.items() if kind == "MXFP4"} == {
        f"blk.{layer}.ffn_{part}_exps.weight" for layer in range(2) for part in ("gate", "up", "down")
    }
    assert types["blk.0.attn_q.weight"] == types["token_embd.weight"] == types["output.weight"] == "Q8_0"
