"""Adapters are read strictly: features that chaski would not compute as trained are refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import AdapterError, GGUFError, ModelNotFoundError
from chaski.formats.adapter import check_adapter, check_finite, open_adapter
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType
from tests.adapters import metadata, random_adapter

Q = "blk.0.attn_q.weight"
F32 = QuantType.F32


def zeros(*shape: int) -> tuple[Any, QuantType]:
    return np.zeros(shape, np.float32), F32


def base(path: Path, architecture: str = "llama") -> Path:
    tensors = {
        Q: zeros(64, 32),
        "blk.0.attn_norm.weight": zeros(32),
        "blk.0.ffn_up_exps.weight": zeros(2, 8, 32),
    }
    write_gguf(path / "base.gguf", {"general.architecture": architecture}, tensors)
    return path / "base.gguf"


def test_an_adapter_is_its_pairs_by_the_models_names(tmp_path: Path) -> None:
    for type in (F32, QuantType.F16, QuantType.BF16, QuantType.Q8_0):
        with open_adapter(
            random_adapter(tmp_path / "a.gguf", {Q: (64, 32)}, 1, rank=4, type=type)
        ) as adapter:
            assert adapter.architecture == "llama"
            assert (adapter.alpha, adapter.rank) == (32.0, 4)
            pair = adapter.tensors[Q]
            assert (pair.a.shape, pair.b.shape, pair.rank) == ((4, 32), (64, 4), 4)
            assert (pair.scale(32.0), pair.scale(0.0)) == (8.0, 1.0)
            check_adapter(adapter, open_gguf(base(tmp_path)))
            check_finite(adapter)


def test_a_digest_says_what_is_computed(tmp_path: Path) -> None:
    digests = {
        open_adapter(random_adapter(tmp_path / "a.gguf", {Q: (64, 32)}, seed, rank, type, alpha)).digest()
        for seed, rank, type, alpha in (
            (1, 4, F32, 32.0),
            (1, 4, F32, 32.0),
            (2, 4, F32, 32.0),
            (1, 8, F32, 32.0),
            (1, 4, QuantType.F16, 32.0),
            (1, 4, F32, 16.0),
        )
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("keys", "tensors", "said"),
    [
        ({"general.type": "model"}, {}, "general.type"),
        ({"adapter.type": "control_vector"}, {}, "control_vector"),
        ({"adapter.lora.alpha": float("nan")}, {}, "alpha"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, {}, "aLoRA"),
        ({"adapter.lora.rotation": 1}, {}, "adapter.lora.rotation"),
        ({}, {}, "no tensors"),
        ({}, {f"{Q}.lora_a": zeros(4, 32)}, "attn_q.weight.lora_b is missing"),
        ({}, {f"{Q}.lora_b": zeros(64, 4)}, "attn_q.weight.lora_a is missing"),
        ({}, {f"{Q}.lora_a": zeros(4, 32), f"{Q}.lora_b": zeros(64, 8)}, "no rank in common"),
        ({}, {f"{Q}.lora_a": zeros(2, 4, 32), f"{Q}.lora_b": zeros(2, 64, 4)}, "experts"),
        ({}, {f"{Q}.lora_magnitude": zeros(64)}, "DoRA"),
        ({}, {Q: zeros(64, 32)}, "lora_a and .lora_b"),
        ({}, {f"{Q}.lora_a": zeros(2048, 32), f"{Q}.lora_b": zeros(64, 2048)}, "rank 2048"),
        (
            {},
            {f"{Q}.lora_a": (np.zeros((4, 32), np.float32), QuantType.Q4_0), f"{Q}.lora_b": zeros(64, 4)},
            "Q4_0",
        ),
    ],
)
def test_what_is_no_lora_adapter_is_refused_by_name(
    keys: dict[str, Any], tensors: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "a.gguf", {**metadata(), **keys}, tensors)
    with pytest.raises(AdapterError, match=said) as refused:
        open_adapter(tmp_path / "a.gguf")
    assert str(tmp_path / "a.gguf") in str(refused.value)


def test_keys_are_there_with_their_kinds(tmp_path: Path) -> None:
    for key in ("adapter.type", "adapter.lora.alpha", "general.architecture"):
        keys = {name: value for name, value in metadata().items() if name != key}
        write_gguf(tmp_path / "a.gguf", keys, {f"{Q}.lora_a": zeros(4, 32), f"{Q}.lora_b": zeros(64, 4)})
        with pytest.raises(GGUFError, match=key):
            open_adapter(tmp_path / "a.gguf")
    with pytest.raises(ModelNotFoundError):
        open_adapter(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("name", "shape", "architecture", "said"),
    [
        (Q, (64, 32), "qwen3", "architecture"),
        ("blk.7.attn_q.weight", (64, 32), "llama", "blk.7.attn_q.weight, which base.gguf does not have"),
        (Q, (64, 64), "llama", "lora_a has shape"),
        (Q, (128, 32), "llama", "lora_b has shape"),
        ("blk.0.attn_norm.weight", (1, 32), "llama", "norms"),
        ("blk.0.ffn_up_exps.weight", (8, 32), "llama", "experts"),
    ],
)
def test_an_adapter_is_for_the_model_that_it_was_trained_on(
    name: str, shape: tuple[int, int], architecture: str, said: str, tmp_path: Path
) -> None:
    path = random_adapter(tmp_path / "a.gguf", {name: shape}, 1, rank=4, architecture=architecture)
    with pytest.raises(AdapterError, match=said):
        check_adapter(open_adapter(path), open_gguf(base(tmp_path)))


@pytest.mark.parametrize(
    ("type", "words"),
    [
        (F32, np.array([0x7F800000, 0xFF800000, 0x7FC00000], np.uint32)),
        (QuantType.F16, np.array([0x7C00, 0xFC00, 0x7E00], np.uint16)),
        (QuantType.BF16, np.array([0x7F80, 0xFF80, 0x7FC0], np.uint16)),
    ],
)
def test_values_are_finite(type: QuantType, words: npt.NDArray[Any], tmp_path: Path) -> None:
    for word in words:
        b = np.zeros((64, 4), words.dtype)
        b[63, 3] = word
        tensors = {
            f"{Q}.lora_a": zeros(4, 32),
            f"{Q}.lora_b": LazyTensor((64, 4), type, partial(list, [b.view(np.uint8)])),
        }
        write_gguf(tmp_path / "a.gguf", metadata(), tensors)
        with pytest.raises(AdapterError, match="lora_b has values"):
            check_finite(open_adapter(tmp_path / "a.gguf"))
