"""Files in several parts, as llama.cpp's `llama-gguf-split` writes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import FormatError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_parts import write_in_parts
from chaski.formats.gguf_writer import LazyTensor
from chaski.formats.quant import QuantType

METADATA = {"general.architecture": "llama", "x": 3}


def zeros(size: int) -> list[np.ndarray]:
    return [np.zeros(size, np.uint8)]


def tensors(*sizes: int) -> dict[str, LazyTensor]:
    """Return tensors of these sizes in bytes."""
    return {
        f"t{number}": LazyTensor((size // 4,), QuantType.F32, partial(zeros, size))
        for number, size in enumerate(sizes)
    }


@pytest.mark.parametrize(
    ("max_bytes", "sizes", "wanted"),
    [
        (100, (40, 60, 4, 40), [2, 2]),
        (100, (40, 64, 200, 4), [1, 1, 1, 1]),
        (8, (4, 4, 4), [2, 1]),
    ],
)
def test_tensors_of_each_part(
    tmp_path: Path, max_bytes: int, sizes: tuple[int, ...], wanted: list[int]
) -> None:
    paths = write_in_parts(tmp_path / "m.gguf", METADATA, tensors(*sizes), max_bytes)
    assert [path.name for path in paths] == [
        f"m-{number:05d}-of-{len(wanted):05d}.gguf" for number in range(1, len(wanted) + 1)
    ]
    assert sorted(tmp_path.iterdir()) == paths
    for path in paths:
        with open_gguf(path) as file:
            assert list(file.tensors) == [f"t{number}" for number in range(len(sizes))]
            assert file.get("x", int) == 3
            assert (file.get("split.count", int), file.get("split.tensors.count", int)) == (
                len(wanted),
                len(sizes),
            )
    assert [parts_of(path) for path in paths] == wanted


def parts_of(path: Path) -> int:
    """Return the number of tensors in this part alone."""
    return int.from_bytes(path.read_bytes()[8:16], "little")


@pytest.mark.parametrize("max_bytes", [None, 1000])
def test_a_file_that_is_small_enough_has_no_parts(tmp_path: Path, max_bytes: int | None) -> None:
    path = tmp_path / "m.gguf"
    assert write_in_parts(path, METADATA, tensors(40, 60), max_bytes) == [path]
    with open_gguf(path) as file:
        assert "split.count" not in file.metadata


def test_the_first_part_appears_last(tmp_path: Path) -> None:
    """Nobody can open the model before it is complete."""
    seen: list[list[str]] = []
    last = tensors(4)["t0"]

    def chunks() -> list[np.ndarray]:
        seen.append(sorted(path.name for path in tmp_path.glob("m-*")))
        return zeros(4)

    given = {"first": LazyTensor(last.shape, last.type, chunks), **tensors(4, 4)}
    write_in_parts(tmp_path / "m.gguf", METADATA, given, 4)
    assert seen == [["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]]
    assert isinstance(open_gguf(tmp_path / "m-00003-of-00003.gguf"), GGUFFile)


def test_no_part_remains_after_an_error(tmp_path: Path) -> None:
    short = LazyTensor((2,), QuantType.F32, partial(zeros, 4))
    with pytest.raises(FormatError, match="tensor 'short' takes 8 bytes"):
        write_in_parts(tmp_path / "m.gguf", METADATA, {**tensors(4, 4), "short": short, "last": short}, 4)
    assert not list(tmp_path.iterdir())
