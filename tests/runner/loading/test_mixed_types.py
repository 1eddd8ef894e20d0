"""Files whose matrices have many types, such as those of importance-weighted mixes, run like any other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.runner.loading.engine_choice import native_gap
from tests.mixed_llama import write_mixed_llama
from tests.native.matmul_rule import QUANTIZED_TYPES
from tests.rewriting import all_tensors


@pytest.mark.parametrize("experts", [0, 3])
def test_every_type_in_one_file(experts: int, tmp_path: Path) -> None:
    pair = write_mixed_llama(tmp_path, QUANTIZED_TYPES, layers=-(-len(QUANTIZED_TYPES) // 7), experts=experts)
    with open_gguf(pair.stored) as file:
        assert native_gap(file) is None
        types = {tensor.type for tensor in file.tensors.values()}
        assert types == {*QUANTIZED_TYPES, QuantType.F32}
    tokens = [int(i) for i in np.random.default_rng(4).integers(0, 256, 40)]
    with chaski.load(pair.plain) as model:
        exact = model.logits(tokens)
    with chaski.load(pair.stored) as model:
        found = model.logits(tokens)
        alone = model.logits(tokens[:7])
    np.testing.assert_array_equal(alone, found[:7])
    assert exact.std() > 0.05
    assert np.abs(found - exact).mean() < 0.1 * exact.std()


def test_matrices_with_a_scale_next_to_them(tmp_path: Path) -> None:
    """Files with NVFP4 have factors for whole matrices, and for inputs. The latter change nothing."""
    plain = write_mixed_llama(tmp_path, [QuantType.NVFP4]).plain
    with open_gguf(plain) as file:
        tensors: dict[str, Any] = all_tensors(file)
        halved = {"blk.0.attn_q": 0.5, "blk.1.ffn_up": 2.0, "output": 4.0, "token_embd": 0.25}
        for name, factor in halved.items():
            values = file.tensors[f"{name}.weight"].data.view(np.float32) / np.float32(factor)
            tensors[f"{name}.weight"] = values.reshape(file.tensors[f"{name}.weight"].shape), QuantType.F32
            tensors[f"{name}.scale"] = np.array([factor], np.float32), QuantType.F32
            tensors[f"{name}.input_scale"] = np.array([7], np.float32), QuantType.F32
        write_gguf(tmp_path / "scaled.gguf", file.metadata, tensors)
        assert native_gap(file) is None
    tokens = [int(i) for i in np.random.default_rng(4).integers(0, 256, 20)]
    with chaski.load(plain) as model:
        wanted = model.logits(tokens)
    with chaski.load(tmp_path / "scaled.gguf") as model:
        np.testing.assert_array_equal(model.logits(tokens), wanted)


@pytest.mark.parametrize("is_joined", [False, True])
def test_experts_with_a_scale_for_each(is_joined: bool, tmp_path: Path) -> None:
    """The scale next to the last part of a joined tensor belongs to all of its matrices."""
    plain = write_mixed_llama(tmp_path, [QuantType.NVFP4], experts=3).plain
    factors = np.array([0.5, 4, 0.125], np.float32)  # exact
    with open_gguf(plain) as file:
        tensors: dict[str, Any] = all_tensors(file)
        for layer, name in itertools.product((0, 1), ("gate", "up", "down")):
            stack = f"blk.{layer}.ffn_{name}_exps"
            values = file.tensors[f"{stack}.weight"].data.view(np.float32).reshape(3, -1) / factors[:, None]
            tensors[f"{stack}.weight"] = values.reshape(3, 256, 256), QuantType.F32
            if name != "gate" or not is_joined:
                tensors[f"{stack}.scale"] = factors, QuantType.F32
                tensors[f"{stack}.input_scale"] = factors, QuantType.F32
        for layer in (0, 1) if is_joined else ():
            both = [tensors.pop(f"blk.{layer}.ffn_{name}_exps.weight")[0] for name in ("gate", "up")]
            tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(both, 1), QuantType.F32
        write_gguf(tmp_path / "scaled.gguf", file.metadata, tensors)
        assert native_gap(file) is None
    tokens = [int(i) for i in np.random.default_rng(4).integers(0, 256, 20)]
    with chaski.load(plain) as model:
        wanted = model.logits(tokens)
    with chaski.load(tmp_path / "scaled.gguf") as model:
        np.testing.assert_array_equal(model.logits(tokens), wanted)
