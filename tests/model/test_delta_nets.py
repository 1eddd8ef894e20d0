"""Qwen 3 Next and Qwen 3.5: variants of their files, and llama.cpp's numbers for the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.formats.requantize import plan_types, requantize
from chaski.runner.channels.worker.client import Worker
from tests.own_heads import write_with_heads
from tests.rewriting import all_tensors
from tests.vision_oracle import F32

DATA = Path(__file__).parents[1] / "data" / "architectures"
NAMES = ["qwen3next", "qwen35", "qwen35-even", "qwen35moe"]


def ids_of(name: str) -> list[int]:
    with np.load(DATA / f"{name}.npz") as arrays:
        ids: list[int] = arrays["ids"].tolist()
    return ids


def logits(path: Path, ids: list[int]) -> F32:
    with chaski.load(path, context=128, threads=2) as model:
        return np.asarray(model.logits(ids))


def arrays_of(name: str) -> tuple[dict[str, Any], dict[str, F32]]:
    with open_gguf(DATA / f"{name}.gguf") as file:
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
        return dict(file.metadata), arrays


def write(path: Path, metadata: dict[str, Any], arrays: dict[str, F32]) -> Path:
    tensors = {key: (array, QuantType.F32) for key, array in arrays.items()}
    write_gguf(path, metadata, tensors)
    return path


def test_one_matrix_of_q_k_v_and_z(tmp_path: Path) -> None:
    """The first files of Qwen 3 Next have the checkpoint's rows, one key head after the other."""
    metadata, arrays = arrays_of("qwen3next")
    for layer in (0, 2):
        rows = arrays.pop(f"blk.{layer}.attn_qkv.weight"), arrays.pop(f"blk.{layer}.attn_gate.weight")
        parts = [*np.split(rows[0], [40, 80]), rows[1]]
        heads = [part.reshape(2, -1, 32) for part in parts]
        arrays[f"blk.{layer}.ssm_in.weight"] = np.concatenate(heads, axis=1).reshape(-1, 32)
    found = logits(write(tmp_path / "first.gguf", metadata, arrays), ids_of("qwen3next"))
    np.testing.assert_array_equal(found, logits(DATA / "qwen3next.gguf", ids_of("qwen3next")))


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_blocks_for_multi_token_prediction_behind_the_first_are_left_out(name: str, tmp_path: Path) -> None:
    """They count as layers in the file's metadata."""
    path = write_with_heads(name, tmp_path / "one.gguf")
    with open_gguf(path) as file:
        arch, layers = file.architecture, file.get(f"{file.architecture}.block_count", int)
        metadata = {
            **file.metadata,
            f"{arch}.block_count": layers + 1,
            f"{arch}.nextn_predict_layers": 2,
        }
        tensors: dict[str, Any] = dict(all_tensors(file))
        tensors[f"blk.{layers}.attn_k.weight"] = (np.ones((24, 32), np.float32), QuantType.F32)
        write_gguf(tmp_path / "two.gguf", metadata, tensors)
    found = logits(tmp_path / "two.gguf", ids_of(name))
    np.testing.assert_array_equal(found, logits(path, ids_of(name)))


def test_a_block_for_multi_token_prediction_is_whole(tmp_path: Path) -> None:
    path = write_with_heads("qwen35", tmp_path / "whole.gguf")
    with open_gguf(path) as file:
        tensors = {name: data for name, data in all_tensors(file).items() if name != "blk.4.attn_k.weight"}
        write_gguf(tmp_path / "part.gguf", file.metadata, tensors)
    with pytest.raises(ModelError, match=r"tensor blk\.4\.attn_k\.weight .* is missing"):
        chaski.load(tmp_path / "part.gguf", context=128)


@pytest.mark.parametrize(
    "keys",
    [
        {"attention.recurrent_layers": None, "attention.head_count_kv": [0, 1, 0]},
        {"attention.recurrent_layers": None, "full_attention_interval": 2},
    ],
)
def test_which_layers_attend(keys: dict[str, Any], tmp_path: Path) -> None:
    """Flags of each layer, layers without key/value heads, or an interval determine them."""
    path = changed(tmp_path, keys)
    found = logits(path, ids_of("qwen3next"))
    np.testing.assert_array_equal(found, logits(DATA / "qwen3next.gguf", ids_of("qwen3next")))


def changed(folder: Path, keys: dict[str, Any]) -> Path:
    """Write the tiny Qwen 3 Next with these values; None removes one."""
    metadata, arrays = arrays_of("qwen3next")
    metadata |= {f"qwen3next.{key}": value for key, value in keys.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return write(folder / "changed.gguf", metadata, arrays)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"attention.recurrent_layers": [True, False]},
            "does not define for each of 3 layers whether it attends",
        ),
        ({"ssm.time_step_rank": 3}, "cannot be divided into 3 value heads that share 2 key heads"),
        ({"ssm.group_count": 0}, "that share 0 key heads"),
        ({"ssm.time_step_rank": 0}, "cannot be divided into 0 value heads"),
        ({"ssm.inner_size": 0}, "cannot be divided"),
        ({"ssm.state_size": 10}, "has shape .*, but the metadata requires"),
        ({"attention.value_length": 16}, "values have 16 elements, but heads have 24"),
        ({"nextn_predict_layers": 3}, "3 of 3 blocks are for multi-token prediction"),
        ({"attention.recurrent_layers": [True, True, True]}, "tensor blk.1.attn_qkv.weight .* is missing"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        chaski.load(changed(tmp_path, keys))


@pytest.mark.oracle
@pytest.mark.parametrize("type", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_the_likeliest_tokens_have_the_scores_that_llama_cpp_gives(
    name: str, type: str, tmp_path: Path
) -> None:
    """The prompts end in the first chunk of the recurrence and in later ones."""
    pytest.importorskip("xllamacpp")
    path = DATA / f"{name}.gguf"
    if type != "F32":
        path = tmp_path / "quantized.gguf"
        with open_gguf(DATA / f"{name}.gguf") as file:
            requantize(file, path, plan_types(file, type))
    ids = ids_of(name)
    found = logits(path, ids).astype(np.float64)
    found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
    differences = []
    with Worker(path, engine="llama.cpp", parallel=1, threads=1, context=128) as worker:
        for length in (1, 5, 33, 70, 90):
            answer = worker.generate(
                ids[:length], temperature=0, num_predict=1, logprobs=True, top_logprobs=20
            )
            top = answer.logprobs[0].top_logprobs
            assert len(top) == 20
            differences += [token.logprob - found[length - 1, token.token_id] for token in top]
    if type == "F32":
        assert np.abs(differences).max() < 2e-3
    else:  # both round activations, each in its own way
        assert np.abs(differences).mean() < 0.1


@pytest.mark.parametrize("length", [64, 70])
def test_a_prompt_that_is_sent_again_is_taken_over(length: int) -> None:
    """This also works after a long answer, when states of later tokens have been replaced."""
    ids = (2 * ids_of("qwen35"))[7 : 7 + length]
    with chaski.load(DATA / "qwen35.gguf", context=256, threads=1, parallel=1) as model:
        short, long, again = (model.generate(ids, num_predict=n, temperature=0) for n in (1, 80, 8))
    assert len(long.token_ids) == 80
    assert [each.cached_tokens for each in (short, long, again)] == [0, length - 1, (length - 1) // 32 * 32]
    assert again.token_ids == long.token_ids[:8]
