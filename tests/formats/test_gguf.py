"""Reading good files: every value type, the tensor table, split files, and the time for a header."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.errors import GGUFError, ModelNotFoundError
from chaski.formats.gguf import GGUFFile, StringArray, open_gguf
from chaski.formats.quant import QuantType
from tests.formats.gguf_bytes import array, array_key, gguf, key, string, string_key, tensor, u32_key

SCALARS = [
    (0, "<B", 250, int),
    (1, "<b", -120, int),
    (2, "<H", 65000, int),
    (3, "<h", -30000, int),
    (4, "<I", 4_000_000_000, int),
    (5, "<i", -2_000_000_000, int),
    (6, "<f", 0.5, float),
    (7, "<?", True, bool),
    (10, "<Q", 2**64 - 1, int),
    (11, "<q", -(2**63), int),
    (12, "<d", 0.1, float),
]
NUMBER_ARRAYS = [(type, layout, [value, 1, 0], kind) for type, layout, value, kind in SCALARS]


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return open_gguf(path)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("type", "layout", "value", "kind"), SCALARS)
def test_scalar(tmp_path: Path, version: int, type: int, layout: str, value: object, kind: type) -> None:
    file = opened(tmp_path, gguf([key("k", type, struct.pack(layout, value))], version=version))
    assert file.metadata == {"k": value}
    assert isinstance(file.get("k", kind), kind)


@pytest.mark.parametrize(("type", "layout", "values", "kind"), NUMBER_ARRAYS)
def test_number_array(tmp_path: Path, type: int, layout: str, values: list[object], kind: Any) -> None:
    packed = b"".join(struct.pack(layout, value) for value in values)
    found: Any = opened(tmp_path, gguf([array_key("k", type, 3, packed)])).get("k", list[kind])
    assert found.tolist() == values
    assert not found.flags.writeable
    assert not found.flags.owndata


def test_string(tmp_path: Path) -> None:
    file = opened(tmp_path, gguf([string_key("k", "Grüße 🦙"), string_key("empty", "")]))
    assert (file.get("k", str), file.get("empty", str)) == ("Grüße 🦙", "")


def test_string_array(tmp_path: Path) -> None:
    texts = [b"a", b"", b"\xff\xfe", "ñandú".encode()]
    packed = b"".join(map(string, texts))
    found = opened(tmp_path, gguf([array_key("k", 8, 4, packed), u32_key("after", 7)])).get("k", list[str])
    assert isinstance(found, StringArray)
    assert [found.raw(index) for index in range(4)] == texts
    assert found[-1] == "ñandú"


def test_nested_array(tmp_path: Path) -> None:
    inner = array(5, 2, struct.pack("<ii", 1, -2)) + array(8, 1, string("x")) + array(9, 0, b"")
    value = opened(tmp_path, gguf([array_key("k", 9, 3, inner), u32_key("after", 7)])).metadata["k"]
    assert isinstance(value, tuple)
    assert [list(part) for part in value] == [[1, -2], ["x"], []]


@pytest.mark.parametrize("type", range(13))
def test_empty_array(tmp_path: Path, type: int) -> None:
    file = opened(tmp_path, gguf([u32_key("before", 1), array_key("k", type, 0, b"")]))
    assert len(file.metadata["k"]) == 0


def test_get_is_strict(tmp_path: Path) -> None:
    keys = [
        string_key("general.architecture", "llama"),
        u32_key("count", 4),
        key("flag", 7, b"\1"),
        array_key("sizes", 5, 1, bytes(4)),
        array_key("words", 8, 0, b""),
        array_key("lists", 9, 0, b""),
    ]
    file = opened(tmp_path, gguf(keys))
    assert file.architecture == "llama"
    assert file.get("absent", int, None) is None
    with pytest.raises(GGUFError, match=r"model\.gguf: key 'absent' is missing"):
        file.get("absent", int)
    for name, wanted, message in [
        ("count", float, "key 'count' is int, not float"),
        ("flag", int, "key 'flag' is bool, not int"),
        ("sizes", list[float], r"key 'sizes' is list\[int\], not list\[float\]"),
        ("sizes", int, r"key 'sizes' is list\[int\], not int"),
        ("words", list[int], r"key 'words' is list\[str\], not list\[int\]"),
        ("lists", list[int], r"key 'lists' is list\[list\[.*\]\], not list\[int\]"),
    ]:
        with pytest.raises(GGUFError, match=message):
            file.get(name, wanted, None)


def test_tensors(tmp_path: Path) -> None:
    data = bytes(range(96))
    rows = [tensor("b", [32, 2], QuantType.Q4_0, 32), tensor("a", [3], QuantType.F16, 0)]
    file = opened(tmp_path, gguf([], rows, data))
    assert list(file.tensors) == ["b", "a"]
    b = file.tensors["b"]
    assert (b.name, b.shape, b.type, b.nbytes) == ("b", (2, 32), QuantType.Q4_0, 36)
    assert b.data.tobytes() == data[32:68] == b.path.read_bytes()[b.offset :][: b.nbytes]
    assert b.data.dtype == np.uint8
    assert not b.data.flags.writeable
    assert not b.data.flags.owndata
    assert file.tensors["a"].data.tobytes() == data[:6]


def test_alignment_from_metadata(tmp_path: Path) -> None:
    keys, rows = [u32_key("general.alignment", 128)], [tensor("t", [1])]
    file = opened(tmp_path, gguf(keys, rows, struct.pack("<f", 1.5), alignment=128))
    assert file.tensors["t"].offset % 128 == 0
    assert file.tensors["t"].data.view("<f4")[0] == 1.5


def test_no_tensors(tmp_path: Path) -> None:
    assert opened(tmp_path, gguf([u32_key("k", 1)])).tensors == {}


def test_views_outlive_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, gguf([array_key("k", 0, 3, b"abc")], [tensor("t", [1])], b"1234")) as file:
        values, data = file.metadata["k"], file.tensors["t"].data
    assert not file.metadata
    assert not file.tensors
    assert bytes(values) + data.tobytes() == b"abc1234"


def test_missing_file(tmp_path: Path) -> None:
    for name in ("a\ud83d", "a\0b"):  # invalid as file names
        with pytest.raises(ModelNotFoundError, match="no such file"):
            open_gguf(name)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match="Is a directory"):
        open_gguf(tmp_path)


def split(folder: Path, number: int, of: int = 3, **changed: int) -> Path:
    """Write one part with one tensor; `changed` overrides the part's metadata."""
    says = {"no": number, "count": of, "tensors": of, **changed}
    keys = [
        key("split.no", 2, struct.pack("<H", says["no"])),
        key("split.count", 2, struct.pack("<H", says["count"])),
    ]
    keys += [key("split.tensors.count", 5, struct.pack("<i", says["tensors"]))]
    keys += [string_key("general.name", "split")] * (number == 0)
    path = folder / f"m-{number + 1:05d}-of-{of:05d}.gguf"
    path.write_bytes(gguf(keys, [tensor(f"t{says.get('name', number)}", [1])], bytes([number, 0, 0, 0])))
    return path


def test_split_file(tmp_path: Path) -> None:
    paths = [split(tmp_path, number) for number in range(3)]
    file = open_gguf(paths[0])
    assert [(info.name, info.path, info.data[0]) for info in file.tensors.values()] == [
        ("t0", paths[0], 0),
        ("t1", paths[1], 1),
        ("t2", paths[2], 2),
    ]
    assert file.get("general.name", str) == "split"
    for path in paths[1:]:
        other = open_gguf(path)
        assert (other.path, list(other.tensors), other.metadata) == (
            paths[0],
            list(file.tensors),
            file.metadata,
        )


@pytest.mark.parametrize(
    ("number", "changed", "message"),
    [
        (1, {"no": 2}, r"m-00002-of-00003.gguf: key 'split.no' is 2, not 1"),
        (2, {"count": 4}, r"m-00003-of-00003.gguf: key 'split.count' is 4, not 3"),
        (0, {"count": 4}, r"one of 4 parts; .* called NAME-00001-of-00004.gguf"),
        (0, {"tensors": 4}, r"'split.tensors.count' is 4, the parts hold 3"),
        (2, {"name": 0}, r"m-00003-of-00003.gguf: tensor 't0' is in an earlier part too"),
    ],
)
def test_inconsistent_split(tmp_path: Path, number: int, changed: dict[str, int], message: str) -> None:
    for part in range(3):
        split(tmp_path, part, **(changed if part == number else {}))
    with pytest.raises(GGUFError, match=message):
        open_gguf(tmp_path / "m-00001-of-00003.gguf")


def test_incomplete_split(tmp_path: Path) -> None:
    split(tmp_path, 0)
    second = split(tmp_path, 1)
    with pytest.raises(GGUFError, match=r"part 3 of 3 is missing: .*m-00003-of-00003.gguf"):
        open_gguf(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(GGUFError, match=r"part 3 of 3 is missing: m-00003-of-00003.gguf"):
        open_gguf(second)
    with pytest.raises(GGUFError, match="one of 3 parts; they must be in one folder"):
        open_gguf(second.rename(tmp_path / "renamed.gguf"))


TOKENS, MERGES, TENSORS = 128_256, 280_147, 290


def words(count: int) -> list[bytes]:
    rng = np.random.default_rng(count)
    sizes = rng.integers(1, 15, count)
    text = rng.choice(
        np.frombuffer(b"abcdefghijklmnopqrstuvwxyz\xc4\xa0", np.uint8), int(sizes.sum())
    ).tobytes()
    ends = np.cumsum(sizes).tolist()
    return [text[end - size : end] for size, end in zip(sizes.tolist(), ends, strict=True)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a sparse file of 1 GB with the vocabulary and the merges of a Llama 3 file."""
    merges = [left + b" " + right for left, right in zip(words(MERGES), words(MERGES + 1)[1:], strict=True)]
    keys = [
        string_key("general.architecture", "llama"),
        array_key("tokenizer.ggml.tokens", 8, TOKENS, b"".join(map(string, words(TOKENS)))),
        array_key("tokenizer.ggml.scores", 6, TOKENS, bytes(4 * TOKENS)),
        array_key("tokenizer.ggml.token_type", 5, TOKENS, bytes(4 * TOKENS)),
        array_key("tokenizer.ggml.merges", 8, MERGES, b"".join(map(string, merges))),
        u32_key("tokenizer.ggml.eos_token_id", 128_009),
    ]
    nbytes = 1664 * 2048 // 32 * 34
    rows = [
        tensor(f"blk.{i}.ffn_up.weight", [2048, 1664], QuantType.Q8_0, i * nbytes) for i in range(TENSORS)
    ]
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    with path.open("wb") as file:
        header = file.write(gguf(keys, rows))
        file.truncate(header + 32 + nbytes * TENSORS)
    assert path.stat().st_size > 1e9
    return path


def test_header_is_read_in_50_ms(large: Path) -> None:
    """The test measures processor time, which other load and the disk hardly change."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        open_gguf(large)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


def test_vocabulary_is_not_made_of_objects(large: Path) -> None:
    tracemalloc.start()
    file = open_gguf(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6
    tokens = file.get("tokenizer.ggml.tokens", list[str])
    assert len(tokens) == TOKENS
    assert tokens.raw(TOKENS - 1) == words(TOKENS)[-1]
    assert file.get("tokenizer.ggml.eos_token_id", int) == 128_009
