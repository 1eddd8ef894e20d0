from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.errors import UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.formats.quantize import quantize
from chaski.formats.requantize import MIXTURES, merge, requantize

Q = QuantType
LAYERS = 16


def write_wide(path: Path, is_tied: bool = False, row: int = 256) -> Path:
    """Write a model of 16 layers with norms, a router, and matrices whose rows suit K types."""
    random = np.random.default_rng(3)

    def matrix(*shape: int) -> tuple[np.ndarray, QuantType]:
        return random.standard_normal(shape).astype(np.float32), Q.F32

    tensors = {"token_embd.weight": matrix(8, row)}
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_v", "ffn_down", "ffn_gate_inp"):
            tensors[f"blk.{layer}.{name}.weight"] = matrix(4, row)
        tensors[f"blk.{layer}.attn_norm.weight"] = (np.ones(row, np.float32), Q.F32)
    if not is_tied:
        tensors["output.weight"] = matrix(8, row)
    metadata = {"general.architecture": "llama", "general.file_type": 0, "tokenizer.ggml.tokens": ["a", "b"]}
    write_gguf(path, metadata, tensors)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide(tmp_path_factory.mktemp("wide") / "wide.gguf")


def types(path: Path) -> dict[str, QuantType]:
    with open_gguf(path) as file:
        return {name.removesuffix(".weight"): tensor.type for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_each_mixture(wide: Path, tmp_path: Path, mixture: str) -> None:
    path = tmp_path / "small.gguf"
    seen: list[tuple[int, int]] = []
    with open_gguf(wide) as file:
        requantize(file, path, mixture, lambda done, total: seen.append((done, total)))
        values = file.tensors["blk.3.attn_q.weight"]
        expected = quantize(dequantize(values.data, values.type, values.shape), MIXTURES[mixture].usual)
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)
    found = types(path)
    assert found["blk.3.attn_q"] is found["token_embd"] is MIXTURES[mixture].usual
    assert found["output"] is MIXTURES[mixture].output
    assert {
        found[f"blk.{layer}.{name}"] for layer in range(LAYERS) for name in ("attn_norm", "ffn_gate_inp")
    } == {Q.F32}
    with open_gguf(path) as file:
        assert file.tensors["blk.3.attn_q.weight"].data.tobytes() == expected.tobytes()
        assert list(file.get("tokenizer.ggml.tokens", list[str])) == ["a", "b"]


def test_some_layers_get_more_bits(wide: Path, tmp_path: Path) -> None:
    with open_gguf(wide) as file:
        requantize(file, tmp_path / "small.gguf", "Q4_K_M")
    found = types(tmp_path / "small.gguf")
    for name in ("attn_v", "ffn_down"):
        better = [layer for layer in range(LAYERS) if found[f"blk.{layer}.{name}"] is Q.Q6_K]
        assert better == [0, 1, 4, 7, 10, 13, 14, 15]  # llama.cpp's choice for a model of 16 layers
        assert found[f"blk.2.{name}"] is Q.Q4_K


def test_a_tied_table_is_the_output(tmp_path: Path) -> None:
    write_wide(tmp_path / "tied.gguf", is_tied=True)
    with open_gguf(tmp_path / "tied.gguf") as file:
        requantize(file, tmp_path / "small.gguf", "Q4_K_M")
    assert types(tmp_path / "small.gguf")["token_embd"] is Q.Q6_K


@pytest.mark.parametrize(("row", "expected"), [(96, Q.Q8_0), (40, Q.F32)])
def test_rows_that_do_not_fit(tmp_path: Path, row: int, expected: QuantType) -> None:
    write_wide(tmp_path / "odd.gguf", row=row)
    with open_gguf(tmp_path / "odd.gguf") as file:
        requantize(file, tmp_path / "small.gguf", "Q4_K_M")
    assert types(tmp_path / "small.gguf")["blk.3.attn_q"] is expected


def test_what_cannot_be_done(wide: Path, tmp_path: Path) -> None:
    with open_gguf(wide) as file:
        with pytest.raises(
            UnsupportedError, match="unsupported quantization type Q2 - supported types are F32, F16"
        ):
            requantize(file, tmp_path / "x.gguf", "Q2")
        requantize(file, tmp_path / "small.gguf", "Q8_0")
    with (
        open_gguf(tmp_path / "small.gguf") as file,
        pytest.raises(UnsupportedError, match="only supported for F16"),
    ):
        requantize(file, tmp_path / "x.gguf", "Q4_0")
    assert not (tmp_path / "x.gguf").exists()


def test_the_parts_of_a_file_become_one(tmp_path: Path) -> None:
    parts: dict[int, dict[str, np.ndarray]] = {
        1: {"a.weight": np.arange(8, dtype=np.float32)},
        2: {"b.weight": np.ones((2, 4), np.float32)},
    }
    for number, tensors in parts.items():
        split: dict[str, np.generic] = {
            "split.no": np.uint16(number - 1),
            "split.count": np.uint16(2),
            "split.tensors.count": np.int32(2),
        }
        path = tmp_path / f"x-{number:05d}-of-00002.gguf"
        write_gguf(
            path, {"general.architecture": "llama", **split}, {k: (v, Q.F32) for k, v in tensors.items()}
        )
    with open_gguf(tmp_path / "x-00001-of-00002.gguf") as file:
        merge(file, tmp_path / "whole.gguf")
    with open_gguf(tmp_path / "whole.gguf") as file:
        assert dict(file.metadata) == {"general.architecture": "llama"}
        assert file.tensors["a.weight"].data.tobytes() == parts[1]["a.weight"].tobytes()
        assert file.tensors["b.weight"].shape == (2, 4)
