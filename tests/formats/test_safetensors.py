"""Safetensors files: reading, and every false statement of a header."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaski.errors import ChaskiError, FormatError, ModelNotFoundError, UnsupportedError
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import INDEX_NAME, open_checkpoint, open_safetensors


def encoded(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return {"dtype": dtype, "shape": plain(shape), "data_offsets": plain(offsets)}


def write(folder: Path, header: object, data: bytes = b"", name: str = "model.safetensors") -> Path:
    path = folder / name
    path.write_bytes(encoded(header, data))
    return path


def test_tensors_in_the_order_of_the_file(tmp_path: Path) -> None:
    data = np.arange(6, dtype="<f4").tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("F32", (2, 2), (8, 24)),
        "a": entry("F32", (2,), (0, 8)),
    }
    tensors = open_safetensors(write(tmp_path, header, data))
    assert list(tensors) == ["a", "b"]
    assert tensors["b"].data.tolist() == [[2, 3], [4, 5]]
    assert not tensors["b"].data.flags.writeable


def test_bytes_stay_in_the_map(tmp_path: Path) -> None:
    """A file with a terabyte-sized hole opens at once."""
    size = 1 << 40
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded({"x": entry("F16", (size // 2,), (0, size))}))
    os.truncate(path, path.stat().st_size + size)
    assert open_safetensors(path)["x"].data[-1] == 0


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("F64", np.array([1.5, -2], "<f8")),
        ("F32", np.array([1.5, -2], "<f4")),
        ("F16", np.array([1.5, -2], "<f2")),
        ("BF16", np.array([0x3FC0, 0xC000], "<u2")),
    ],
)
def test_floats_widen(tmp_path: Path, dtype: str, values: np.ndarray) -> None:
    header = {"x": entry(dtype, (2,), (0, values.nbytes))}
    tensor = open_safetensors(write(tmp_path, header, values.tobytes()))["x"]
    assert tensor.is_float
    assert as_float32(tensor.data).tolist() == [1.5, -2]


@pytest.mark.parametrize("dtype", ["I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"])
def test_whole_numbers_are_read_as_they_are(tmp_path: Path, dtype: str) -> None:
    size = {"8": 1, "L": 1, "6": 2, "2": 4, "4": 8}[dtype[-1]]
    path = write(tmp_path, {"x": entry(dtype, (1,), (0, size))}, (1).to_bytes(size, "little"))
    tensor = open_safetensors(path)["x"]
    assert tensor.data.tolist() == [1]
    assert not tensor.is_float


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    header = {"s": entry("F32", (), (0, 4)), "e": entry("F32", (0, 7), (4, 4))}
    tensors = open_safetensors(write(tmp_path, header, bytes(4)))
    assert tensors["s"].shape == ()
    assert tensors["e"].data.size == 0


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0"])
def test_small_floats_are_bytes_that_are_neither_numbers_nor_integers(tmp_path: Path, dtype: str) -> None:
    tensor = open_safetensors(write(tmp_path, {"x": entry(dtype, (8,), (0, 8))}, bytes(range(8))))["x"]
    assert tensor.data.tolist() == list(range(8))
    assert not tensor.is_float
    assert not tensor.is_integer


@pytest.mark.parametrize("dtype", ["F4", "F8_E4M3FNUZ", "C64"])
def test_types_that_no_checkpoint_of_a_model_has_are_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(UnsupportedError, match=f"tensor 'x' is {dtype}; no checkpoint"):
        open_safetensors(write(tmp_path, {"x": entry(dtype, (8,), (0, 8))}, bytes(8)))


FAULTS = {
    "not whole": (b"", 7, "truncated: 7 bytes"),
    "header too long": ((1 << 40).to_bytes(8, "little") + b"{}", None, "at most"),
    "header past the end": ((9).to_bytes(8, "little") + b"{}", None, "truncated: a header of 9"),
    "not JSON": (encoded(b"{'x'}"), None, "cannot be read"),
    "not UTF-8": (encoded(b'{"\xff": 1}'), None, "cannot be read"),
    "too deep": (encoded(b"[" * 100_000), None, "cannot be read"),
    "huge number": (encoded(b'{"x":' + b"9" * 10_000 + b"}"), None, "cannot be read"),
    "no object": (encoded([]), None, "not an object"),
    "twice": (encoded(b'{"x": 1, "x": 2}'), None, "'x' appears twice"),
    "notes": (encoded({"__metadata__": {"a": 1}}), None, "must map names to strings"),
    "no entry": (encoded({"x": 3}), None, "must have dtype, shape and data_offsets"),
    "extra key": (encoded({"x": entry() | {"more": 1}}), 8, "must have dtype, shape and data_offsets"),
    "negative size": (encoded({"x": entry("F32", (-2,))}), 8, "not a list of up to 8 sizes"),
    "size is true": (encoded({"x": entry("F32", [True])}), 8, "not a list of up to 8 sizes"),
    "size is a float": (encoded({"x": entry("F32", [2.0])}), 8, "not a list of up to 8 sizes"),
    "too many sizes": (encoded({"x": entry("F32", [1] * 9, (0, 4))}), 4, "not a list of up to 8 sizes"),
    "backwards": (encoded({"x": entry(offsets=(8, 0))}), 8, "not a begin and an end"),
    "three offsets": (encoded({"x": entry(offsets=(0, 8, 9))}), 9, "not a begin and an end"),
    "wrong length": (encoded({"x": entry("F32", (3,))}), 8, "takes 12 bytes, not 8"),
    "overflow": (encoded({"x": entry("F32", (1 << 62, 1 << 62), (0, 8))}), 8, "bytes, not 8"),
    "unknown type": (encoded({"x": entry("Q9")}), 8, "unknown type 'Q9'"),
    "type is no text": (encoded({"x": entry() | {"dtype": 5}}), 8, "unknown type 5"),
    "past the end": (encoded({"x": entry()}), 4, "truncated: the tensors take 8 bytes"),
    "rest": (encoded({"x": entry()}), 9, "the file has 9"),
    "gap": (encoded({"x": entry(offsets=(8, 16))}), 16, "leaves a gap"),
    "overlap": (encoded({"x": entry(), "y": entry(offsets=(4, 12))}), 12, "overlaps"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path: Path, fault: str) -> None:
    start, filler, message = FAULTS[fault]
    path = tmp_path / "model.safetensors"
    path.write_bytes(start + bytes(filler or 0))
    with pytest.raises(FormatError, match=re.escape(message)):
        open_safetensors(path)


@settings(deadline=None)
@given(position=st.integers(0, 200), value=st.integers(0, 255), cut=st.integers(0, 250))
def test_damage_is_an_error_or_harmless(
    position: int, value: int, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(encoded({"x": entry(), "y": entry("F16", (2, 2), (8, 16))}, bytes(16)))
    whole[min(position, len(whole) - 1)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(whole[: max(cut, 1)] if cut < 100 else whole)
    try:
        tensors = open_safetensors(path)
    except ChaskiError:
        return
    assert all(tensor.data.nbytes <= 16 for tensor in tensors.values())


def write_shards(folder: Path, index: object) -> None:
    for name in "ab":
        write(folder, {name: entry()}, bytes(8), f"{name}.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps(index))


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    tensors = open_checkpoint(tmp_path)
    assert {name: tensor.path.name for name, tensor in tensors.items()} == {
        "a": "a.safetensors",
        "b": "b.safetensors",
    }


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../a.safetensors"}, "not a plain name"),
        ({"a": "/a.safetensors"}, "not a plain name"),
        ({"a": ".."}, "not a plain name"),
        ({"a": 1}, "not a plain name"),
        ({}, "must name a file for each tensor"),
        (["a"], "must name a file for each tensor"),
        ({"c": "a.safetensors"}, "tensor 'c' of the index is not in this file"),
        ({"a": "a.safetensors", "b": "a.safetensors"}, "tensor 'b' of the index is not in this file"),
    ],
)
def test_an_index_that_is_wrong(tmp_path: Path, weight_map: object, message: str) -> None:
    write_shards(tmp_path, {"weight_map": weight_map})
    with pytest.raises(FormatError, match=message):
        open_checkpoint(tmp_path)


def test_a_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    write_shards(tmp_path, {"weight_map": {"a": "a.safetensors"}})
    write(tmp_path, {"a": entry(), "z": entry(offsets=(8, 16))}, bytes(16), "a.safetensors")
    with pytest.raises(FormatError, match="'z' is not listed"):
        open_checkpoint(tmp_path)


def test_a_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, {"weight_map": {"a": "a.safetensors", "c": "c.safetensors"}})
    with pytest.raises(ModelNotFoundError, match=r"c\.safetensors: no such file"):
        open_checkpoint(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no weights"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["a\ud83d", "a\0b"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_safetensors(Path(name))
