"""Written files are read back by our reader and by the gguf package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from chaski.errors import FormatError
from chaski.formats.gguf import StringArray, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType
from chaski.formats.quantize import quantize

WEIGHTS = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "small": 7,
    "negative": -7,
    "large": 2**40,
    "largest": 2**64 - 1,
    "smallest": -(2**63),
    "flag": True,
    "ratio": 0.25,
    "typed": np.uint16(3),
    "double": np.float64(0.1),
    "words": ["a", "", "ñ"],
    "numbers": [1, -2, 3],
    "large numbers": [2**40, -1],
    "ratios": [0.5, 1.5],
    "flags": [True, False],
    "array": np.array([1, 2], np.uint8),
    "empty": np.zeros(0, np.float32),
    "lists": [[1, 2], ["x"], [[0.5]]],
}
TYPES = {
    "small": 4,
    "negative": 5,
    "large": 10,
    "largest": 10,
    "smallest": 11,
    "flag": 7,
    "ratio": 6,
    "typed": 2,
    "double": 12,
}


def plain(value: Any) -> Any:
    """Convert arrays to lists for comparison."""
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | StringArray | np.generic) else value


def test_metadata_is_read_back(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", METADATA, {})
    with open_gguf(tmp_path / "m.gguf") as file:
        assert list(file.metadata) == list(METADATA)
        assert {key: plain(value) for key, value in file.metadata.items()} == {
            key: plain(value) for key, value in METADATA.items()
        }


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    tensors = {
        "a": (WEIGHTS, QuantType.Q8_0),
        "b": (WEIGHTS[0], QuantType.F32),
        "c": (WEIGHTS, QuantType.Q6_K),
    }
    metadata = {key: value for key, value in METADATA.items() if key not in ("lists", "empty")}
    write_gguf(tmp_path / "m.gguf", {**metadata, "general.alignment": 64}, tensors)
    reader = GGUFReader(tmp_path / "m.gguf")
    for key, type in TYPES.items():
        assert reader.fields[key].types == [type]
        assert reader.fields[key].contents() == pytest.approx(METADATA[key])
    assert reader.fields["words"].contents() == METADATA["words"]
    assert reader.fields["numbers"].contents() == METADATA["numbers"]
    for tensor, (name, (array, type)) in zip(reader.tensors, tensors.items(), strict=True):
        assert (tensor.name, int(tensor.tensor_type)) == (name, type)
        assert tensor.shape.tolist() == list(array.shape[::-1])
        assert tensor.data.tobytes() == quantize(array, type).tobytes()
        assert tensor.data_offset % 64 == 0


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_are_read_back(tmp_path: Path, alignment: int) -> None:
    tensors = {f"t{i}": (WEIGHTS[: i + 1], type) for i, type in enumerate([QuantType.Q4_0, QuantType.BF16])}
    write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, tensors)
    with open_gguf(tmp_path / "m.gguf") as file:
        for name, (array, type) in tensors.items():
            info = file.tensors[name]
            assert (info.shape, info.type) == (array.shape, type)
            np.testing.assert_array_equal(info.data, quantize(array, type))
            assert info.offset % alignment == 0


def test_copy_from_an_open_file(tmp_path: Path) -> None:
    """The writer accepts the reader's output."""
    metadata = {key: value for key, value in METADATA.items() if key not in ("typed", "double")}
    write_gguf(tmp_path / "a.gguf", metadata, {"t": (WEIGHTS, QuantType.Q4_K)})
    with open_gguf(tmp_path / "a.gguf") as file:
        info = file.tensors["t"]
        write_gguf(
            tmp_path / "b.gguf", file.metadata, {"t": LazyTensor(info.shape, info.type, lambda: [info.data])}
        )
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_tensors_are_made_one_after_the_other(tmp_path: Path) -> None:
    """Chunks are requested when they are written, so at most one is alive at a time."""
    alive = 0

    def chunks() -> Iterator[np.ndarray]:
        nonlocal alive
        alive += 1
        assert alive == 1
        for part in range(4):
            yield np.full(64, part, np.uint8)
        alive -= 1

    lazy = LazyTensor((2, 32), QuantType.F32, chunks)
    write_gguf(tmp_path / "m.gguf", {}, {"a": lazy, "b": lazy})
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.tensors["b"].data[::64].tolist() == [0, 1, 2, 3]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"k": "old"}, {})
    short = LazyTensor((32,), QuantType.F32, lambda: [np.zeros(127, np.uint8)])
    with pytest.raises(FormatError, match="tensor 't' takes 128 bytes, but 127 were given"):
        write_gguf(path, {"k": "new"}, {"t": short})
    assert open_gguf(path).get("k", str) == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "key 'k': a list of unknown element type"),
        (None, "key 'k': a NoneType of unknown element type"),
        ([1, "a"], "key 'k': a list with elements of different types"),
        ([1, 2.5], "key 'k': a list with elements of different types"),
        (2**64, "key 'k': no integer type holds both"),
        ([2**64 - 1, -1], "key 'k': no integer type holds both 18446744073709551615|-1"),
        (np.zeros((2, 2)), "key 'k': an array of 2 dimensions"),
        (np.zeros(2, np.float16), "key 'k': GGUF has no value type for float16"),
        ("\ud800", "key 'k': .* cannot be written as UTF-8"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        write_gguf(tmp_path / "m.gguf", {"k": value}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("array", "type", "message"),
    [
        (np.zeros((1, 33)), QuantType.Q8_0, "a row of 33 elements is not whole Q8_0 blocks"),
        (np.zeros((0, 32)), QuantType.F32, r"tensor 't' has the shape \(0, 32\)"),
        (np.zeros((1, 1, 1, 1, 32)), QuantType.F32, "tensor 't' has the shape"),
        (np.float32(1).reshape(()), QuantType.F32, r"tensor 't' has the shape \(\)"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, array: np.ndarray, type: QuantType, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        write_gguf(tmp_path / "m.gguf", {}, {"t": (array, type)})


@pytest.mark.parametrize("alignment", [0, 4, 33, "32", 0.5])
def test_bad_alignment(tmp_path: Path, alignment: Any) -> None:
    with pytest.raises(FormatError, match=r"key 'general\.alignment' is"):
        write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, {})
