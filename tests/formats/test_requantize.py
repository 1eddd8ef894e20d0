from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.errors import FormatError, OptionError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.importance import Entry, ImportanceMatrix
from chaski.formats.mixture import MIXTURES
from chaski.formats.quant import QuantType
from chaski.formats.quantize import quantize
from chaski.formats.requantize import check_is_float, merge, plan_types, requantize

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
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "tokenizer.ggml.tokens": ["a", "b"],
    }
    write_gguf(path, metadata, tensors)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide(tmp_path_factory.mktemp("wide") / "wide.gguf")


def types(path: Path) -> dict[str, QuantType]:
    with open_gguf(path) as file:
        return {name.removesuffix(".weight"): tensor.type for name, tensor in file.tensors.items()}


def write_as(source: Path, path: Path, mixture: str, **options: Any) -> dict[str, QuantType]:
    with open_gguf(source) as file:
        requantize(file, path, plan_types(file, mixture, **options))
    return types(path)


@pytest.mark.parametrize("mixture", ["F16", "Q8_0", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ4_XS"])
def test_each_mixture(wide: Path, tmp_path: Path, mixture: str) -> None:
    path = tmp_path / "small.gguf"
    seen: list[tuple[int, int]] = []
    base = MIXTURES[mixture].base
    with open_gguf(wide) as file:
        plan = plan_types(file, mixture)
        requantize(file, path, plan, lambda done, total: seen.append((done, total)))
        values = file.tensors["blk.3.attn_q.weight"]
        expected = quantize(dequantize(values.data, values.type, values.shape), base)
        sizes = plan.sizes(file)
        assert plan.notes(file) == []
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)
    found = types(path)
    assert found["blk.3.attn_q"] is found["token_embd"] is base
    assert {
        found[f"blk.{layer}.{name}"] for layer in range(LAYERS) for name in ("attn_norm", "ffn_gate_inp")
    } == {Q.F32}
    with open_gguf(path) as file:
        assert file.tensors["blk.3.attn_q.weight"].data.tobytes() == expected.tobytes()
        assert list(file.get("tokenizer.ggml.tokens", list[str])) == ["a", "b"]
        assert file.get("general.file_type", int) == MIXTURES[mixture].number
        assert sizes == {name: tensor.nbytes for name, tensor in file.tensors.items()}


def test_some_layers_get_more_bits(wide: Path, tmp_path: Path) -> None:
    found = write_as(wide, tmp_path / "small.gguf", "Q4_K_M")
    for name in ("attn_v", "ffn_down"):
        better = [layer for layer in range(LAYERS) if found[f"blk.{layer}.{name}"] is Q.Q6_K]
        assert better == [0, 1, 4, 7, 10, 13, 14, 15]  # llama.cpp's choice for a model of 16 layers
        assert found[f"blk.2.{name}"] is Q.Q4_K


def test_a_tied_table_is_the_output(tmp_path: Path) -> None:
    write_wide(tmp_path / "tied.gguf", is_tied=True)
    assert write_as(tmp_path / "tied.gguf", tmp_path / "small.gguf", "Q4_K_M")["token_embd"] is Q.Q6_K


@pytest.mark.parametrize(("row", "expected"), [(96, Q.Q5_0), (40, Q.F16)])
def test_rows_that_do_not_fit(tmp_path: Path, row: int, expected: QuantType) -> None:
    write_wide(tmp_path / "odd.gguf", row=row)
    found = write_as(tmp_path / "odd.gguf", tmp_path / "small.gguf", "Q4_K_M")
    assert found["blk.3.attn_q"] is expected


def test_quantized_files_are_quantized_again(wide: Path, tmp_path: Path) -> None:
    write_as(wide, tmp_path / "first.gguf", "Q5_K_M")
    write_as(tmp_path / "first.gguf", tmp_path / "second.gguf", "Q4_0")
    with open_gguf(tmp_path / "first.gguf") as file, open_gguf(tmp_path / "second.gguf") as again:
        tensor, found = (each.tensors["blk.3.attn_q.weight"] for each in (file, again))
        values = dequantize(tensor.data, tensor.type, tensor.shape)
        assert found.data.tobytes() == quantize(values, Q.Q4_0).tobytes()
        (note,) = plan_types(file, "Q4_0").notes(file)
        assert note.startswith("Tensors of Q5_K, Q6_K were quantized again, which loses more")
        assert plan_types(file, "F16").notes(file) == []


def test_a_matrix_of_experts_has_importance_for_each(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    x = random.standard_normal((3, 8, 256)).astype(np.float32)
    name = "blk.0.ffn_up_exps.weight"
    write_gguf(tmp_path / "experts.gguf", {"general.architecture": "llama"}, {name: (x, Q.F32)})
    sums = np.exp(random.standard_normal((3, 256))).astype(np.float32)
    counts = np.array([2, 5, 0], np.float32)
    matrix = ImportanceMatrix(tmp_path / "i.gguf", {name: Entry(sums, counts)}, ["a text"], 1)
    write_as(tmp_path / "experts.gguf", tmp_path / "small.gguf", "Q4_K_S", importance=matrix)
    with open_gguf(tmp_path / "small.gguf") as file:
        found = file.tensors[name].data.reshape(3, -1)
        assert file.get("quantize.imatrix.entries_count", int) == 1
        assert file.get("quantize.imatrix.dataset", str) == "a text"
    for expert, means in enumerate((sums[0] / 2, sums[1] / 5, np.ones(256, np.float32))):
        assert found[expert].tobytes() == quantize(x[expert], Q.Q4_K, importance=means).tobytes()


def test_types_that_need_importance(wide: Path, tmp_path: Path) -> None:
    with open_gguf(wide) as file:
        with pytest.raises(OptionError, match=r"attn_q.weight as Q2_K needs an importance matrix; make one"):
            plan_types(file, "Q2_K_S")
        entries = {"blk.0.attn_v.weight": Entry(np.ones((1, 256), np.float32), np.ones(1, np.float32))}
        matrix = ImportanceMatrix(tmp_path / "i.gguf", entries, [])
        with pytest.raises(OptionError, match="needs an importance matrix with this tensor; make one"):
            plan_types(file, "Q2_K_S", importance=matrix)
        (note,) = plan_types(file, "Q4_K_M", importance=matrix).notes(file)
        assert note.endswith("i.gguf has no importance of 47 tensors, such as blk.0.attn_q.weight.")
        entries = {"blk.0.attn_v.weight": Entry(np.ones((1, 128), np.float32), np.ones(1, np.float32))}
        with pytest.raises(OptionError, match="has 128 columns, but 256 in the model; the importance matrix"):
            plan_types(file, "Q4_K_M", importance=ImportanceMatrix(tmp_path / "i.gguf", entries, []))


def test_what_cannot_be_done(wide: Path, tmp_path: Path) -> None:
    with open_gguf(wide) as file:
        check_is_float(file, "Q4_0")
        with pytest.raises(
            UnsupportedError, match="unsupported quantization type Q2 - supported types are F32, F16"
        ):
            check_is_float(file, "Q2")
    write_as(wide, tmp_path / "small.gguf", "Q8_0")
    with (
        open_gguf(tmp_path / "small.gguf") as file,
        pytest.raises(UnsupportedError, match="only supported for F16"),
    ):
        check_is_float(file, "Q4_0")


def test_values_that_a_type_cannot_hold_are_named(tmp_path: Path) -> None:
    x = np.full((2, 256), 1e9, np.float32)
    write_gguf(tmp_path / "x.gguf", {"general.architecture": "llama"}, {"x.weight": (x, Q.F32)})
    with pytest.raises(FormatError, match=r"tensor 'x.weight': the value 1e.09 is too large for Q4_K"):
        write_as(tmp_path / "x.gguf", tmp_path / "y.gguf", "Q4_K_M")
    assert not (tmp_path / "y.gguf").exists()


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
