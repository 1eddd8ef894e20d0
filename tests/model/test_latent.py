"""Latent attention: files of older converters, and sizes that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.families import converted, expected
from tests.rewriting import all_tensors

TOLERANCE = 1e-3


def write_joined(source: Path, target: Path, type: QuantType = QuantType.F32) -> None:
    """Write a file again with one matrix for the keys and values of all heads, as older converters do."""
    with open_gguf(source) as file:
        tensors: dict[str, Any] = dict(all_tensors(file))
        for layer in range(file.get("deepseek2.block_count", int)):
            prefix = f"blk.{layer}.attn"
            del tensors[f"{prefix}_k_b.weight"], tensors[f"{prefix}_v_b.weight"]
            keys, values = (floats(file, f"{prefix}_{name}_b.weight") for name in "kv")
            joined = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
            tensors[f"{prefix}_kv_b.weight"] = joined.reshape(-1, joined.shape[2]), type
        arch, entries = "deepseek2.attention", dict(file.metadata)
        entries[f"{arch}.head_count_kv"] = entries[f"{arch}.head_count"]
        for name in ("key", "value"):
            entries[f"{arch}.{name}_length"] = entries.pop(f"{arch}.{name}_length_mla")
        write_gguf(target, entries, tensors)


def floats(file: GGUFFile, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    info = file.tensors[name]
    return info.data.view(np.float32).reshape(info.shape)


@pytest.mark.parametrize("variant", ["deepseek2/v2", "deepseek2/v3"])
def test_a_file_with_one_matrix_for_keys_and_values_gives_the_same_tokens(
    variant: str, tmp_path: Path
) -> None:
    wanted = expected(variant)
    write_joined(converted(variant), tmp_path / "joined.gguf")
    ids = [*wanted["prompt"].tolist(), *wanted["tokens"].tolist()]
    with chaski.load(tmp_path / "joined.gguf", context=128, kv_type="f32", threads=1) as model:
        logits = np.asarray(model.logits(ids))
    np.testing.assert_allclose(logits[wanted["places"]], wanted["logits"], rtol=0, atol=TOLERANCE)
    assert logits[len(wanted["prompt"]) - 1 : -1].argmax(axis=1).tolist() == wanted["tokens"].tolist()


def test_that_matrix_may_be_quantized(tmp_path: Path) -> None:
    write_joined(converted("deepseek2/v3"), tmp_path / "joined.gguf", QuantType.Q8_0)
    wanted = expected("deepseek2/v3")
    with chaski.load(tmp_path / "joined.gguf", context=128, kv_type="f32", threads=1) as model:
        logits = np.asarray(model.logits(wanted["prompt"].tolist()))
    spread = wanted["logits"].std()
    np.testing.assert_allclose(logits[wanted["places"]], wanted["logits"], rtol=0, atol=0.2 * spread)


def test_a_key_without_other_elements_than_rotated_ones_is_refused(tmp_path: Path) -> None:
    with open_gguf(converted("deepseek2/v3")) as file:
        entries = {**file.metadata, "deepseek2.attention.key_length_mla": 4}
        write_gguf(tmp_path / "short.gguf", entries, all_tensors(file))
    with pytest.raises(ModelError, match=r"key_length_mla is 4, not more than the 4 rotated elements"):
        chaski.load(tmp_path / "short.gguf", context=64)


def rewritten(target: Path, arch: str = "deepseek2", **more: float) -> Path:
    """Write a tiny model again as another architecture, with more keys of attention."""
    with open_gguf(converted("deepseek2/v3")) as file:
        entries = {key.replace("deepseek2.", f"{arch}."): value for key, value in file.metadata.items()}
        entries |= {"general.architecture": arch}
        entries |= {f"{arch}.attention.{name}": value for name, value in more.items()}
        write_gguf(target, entries, all_tensors(file))
    return target


def logits_of(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    with chaski.load(path, context=128, threads=1) as model:
        return np.asarray(model.logits(expected("deepseek2/v3")["prompt"].tolist()))


@pytest.mark.parametrize("arch", ["deepseek2"])
def test_queries_beyond_the_length_of_temperature_have_factors(arch: str, tmp_path: Path) -> None:
    scaled = rewritten(tmp_path / "scaled.gguf", arch, temperature_scale=0.5, temperature_length=16)
    found, plain = logits_of(scaled), logits_of(converted("deepseek2/v3"))
    np.testing.assert_array_equal(found[:16], plain[:16])
    assert (np.abs(found[16:] - plain[16:]).max(axis=1) > 1e-3).all()
