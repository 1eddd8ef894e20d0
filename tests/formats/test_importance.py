"""Importance matrices of both formats of llama.cpp."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import FormatError, ModelNotFoundError, OptionError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.importance import Entry, ImportanceMatrix, read_importance, write_importance
from chaski.formats.quant import QuantType

DENSE, EXPERTS = "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"
SUMS = np.array([[8, 4, 2, 0], [3, 3, 3, 9]], np.float32)


def matrix(path: Path) -> ImportanceMatrix:
    entries = {
        EXPERTS: Entry(SUMS, np.array([2, 0], np.float32)),
        DENSE: Entry(SUMS[:1], np.array([4], np.float32)),
    }
    return ImportanceMatrix(path, entries, ["a.txt"], 3, 512)


def legacy(name: str, calls: int, values: list[float], rest: bytes = b"") -> bytes:
    entry = struct.pack(f"<i{len(name)}sii", len(name), name.encode(), calls, len(values))
    return struct.pack("<i", 1) + entry + np.array(values, "<f4").tobytes() + rest


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_importance(matrix(tmp_path / "i.gguf"))
    found = read_importance(tmp_path / "i.gguf")
    assert (found.datasets, found.chunk_count, found.chunk_size) == (["a.txt"], 3, 512)
    for name, entry in matrix(tmp_path).entries.items():
        np.testing.assert_array_equal(found.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(found.entries[name].counts, entry.counts)


def test_a_file_has_the_form_of_llama_cpp(tmp_path: Path) -> None:
    write_importance(matrix(tmp_path / "i.gguf"))
    with open_gguf(tmp_path / "i.gguf") as file:
        assert file.metadata["general.type"] == "imatrix"
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
            f"{DENSE}.in_sum2": (1, 4),
            f"{DENSE}.counts": (1, 1),
            f"{EXPERTS}.in_sum2": (2, 4),
            f"{EXPERTS}.counts": (2, 1),
        }
    assert (tmp_path / "i.gguf").stat().st_size % 32 == 0  # llama.cpp reads the padding of the last tensor


def test_importance_is_the_mean_square(tmp_path: Path) -> None:
    found = matrix(tmp_path / "i.gguf")
    dense, experts = found.of(DENSE, (7, 4)), found.of(EXPERTS, (2, 7, 4))
    assert dense is not None
    assert experts is not None
    np.testing.assert_array_equal(dense, SUMS[:1] / 4)
    np.testing.assert_array_equal(experts, [SUMS[0] / 2, [1, 1, 1, 1]])  # no token reached the second
    assert found.of("output.weight", (7, 4)) is None


def test_matrices_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has 4 columns, but 5 in the model"):
        matrix(tmp_path).of(DENSE, (7, 5))


def test_the_earlier_format(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(legacy(DENSE, 2, [2, 4, 6, 8], struct.pack("<ii5s", 10, 5, b"a.txt")))
    found = read_importance(path)
    assert (found.datasets, found.chunk_count) == (["a.txt"], 10)
    np.testing.assert_array_equal(found.of(DENSE, (3, 4)), [[1, 2, 3, 4]])
    path.write_bytes(legacy(EXPERTS, 1, [1, 2, 3, 4, 5, 6, 7, 8]))
    np.testing.assert_array_equal(read_importance(path).of(EXPERTS, (2, 3, 4)), [[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it ends at byte 0"),
        (b"hello, this is a text", "byte 0 begins with the count"),
        (legacy(DENSE, 1, [1, 2])[:-3], "inside an entry"),
        (struct.pack("<i", 0), "it has no entry"),
        (struct.pack("<ii", 1, -5), "byte 4 begins with the count -5"),
        (legacy(DENSE, 1, [1, float("nan")]), "sums of squares that are not finite"),
        (legacy(DENSE, 1, [1, -2]), "or below zero"),
    ],
)
def test_files_that_are_none(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "i.dat").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        read_importance(tmp_path / "i.dat")


def test_gguf_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    with pytest.raises(ModelNotFoundError, match=r"i.gguf: No such file"):
        read_importance(path)
    x = (np.ones((2, 4), np.float32), QuantType.F32)
    write_gguf(path, {"general.architecture": "llama"}, {"a.weight": x})
    with pytest.raises(FormatError, match="is not an importance matrix: no tensor is called"):
        read_importance(path)
    write_gguf(path, {}, {"a.weight.in_sum2": x})
    with pytest.raises(FormatError, match="has no counts, or is not of F32"):
        read_importance(path)
    write_gguf(path, {}, {"a.in_sum2": x, "a.counts": (np.ones((3, 1), np.float32), QuantType.F32)})
    with pytest.raises(FormatError, match="has 2 rows, but 3 counts"):
        read_importance(path)
