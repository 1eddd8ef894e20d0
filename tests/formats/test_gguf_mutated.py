"""Three hundred damaged files: each loads or gives a clear error, with little time and memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.quant import FILE_TYPES
from tests.formats.gguf_bytes import array, array_key, gguf, key, string, string_key, tensor, u32_key

CHILD = Path(__file__).with_name("open_mutants.py")


def plain_file(version: int) -> bytes:
    """Write a file with a value and a tensor of each type."""
    scalars = [key(f"scalar.{type}", type, bytes(size)) for type, size in enumerate([1, 1, 2, 2, 4, 4, 4, 1])]
    keys = [
        string_key("general.architecture", "llama"),
        u32_key("general.alignment", 32),
        *scalars,
        array_key("tokens", 8, 300, b"".join(string(f"token-{i}" * (i % 5)) for i in range(300))),
        array_key("scores", 6, 100, bytes(400)),
        array_key("lists", 9, 2, array(8, 2, string("a") + string("b")) + array(0, 3, b"abc")),
        key("large", 12, struct.pack("<d", 1.5)),
    ]
    rows, data = [], b""
    for type in sorted(FILE_TYPES):
        rows.append(tensor(f"blk.0.{type.name}.weight", [type.block_size, 2], type, len(data)))
        data += bytes(range(1, 33)) * ((type.block_bytes * 2 + 31) // 32)
    return gguf(keys, rows, data, version=version)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mutants(tmp_path: Path, seed: int) -> None:
    sources = [tmp_path / "v2.gguf", tmp_path / "v3.gguf"]
    for version, source in enumerate(sources, start=2):
        source.write_bytes(plain_file(version))
        assert len(open_gguf(source).tensors) == len(FILE_TYPES)
    command = [sys.executable, str(CHILD), str(tmp_path), str(seed), "100", *map(str, sources)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout)
    assert set(report["outcomes"]) <= {"GGUFError", "UnsupportedError", "loaded"}
    assert sum(report["outcomes"].values()) == 100
    assert report["outcomes"]["GGUFError"] > 33, "at least the truncated ones"
    assert report["slowest"] < 2
    assert report["peak"] < 50e6
