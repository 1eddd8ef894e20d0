from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest

from chaski.errors import FormatError, GGUFError
from chaski.formats.gguf import open_gguf
from chaski.formats.recognized import HEAD_BYTES, recognized
from chaski.formats.safetensors import open_safetensors
from tests.tiny_llama import write_tiny_llama


def archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return packed.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98000000\n"
FILES = {
    "empty": (b"", "it is empty; download the file again"),
    "zeros": (bytes(4096), "it is filled with zeros, like an unfinished download"),
    "page": (b"\n<!DOCTYPE html><html lang=en>", "it is an HTML page, often a login or an error page"),
    "page without a type": (b"<HTML><head>", "it is an HTML page"),
    "XML": (b'\xef\xbb\xbf<?xml version="1.0"?><Error>', "it is an XML text, often an error"),
    "JSON": (b'{"error":"Repository not found"}', 'a JSON text (\'{"error":"Repository not found"}\')'),
    "text": ("Zugriff verweigert für alle".encode(), "a text ('Zugriff verweigert für alle')"),
    "Modelfile": (b"# mine\nFROM llama3.2\n", "a Modelfile; create a model from it with `chaski create"),
    "LFS": (LFS, "a Git LFS pointer to a file of 98,000,000 bytes; run `git lfs pull`"),
    "annex": (b"/annex/objects/SHA256E-s98--00.gguf\n", "a git-annex pointer; run `git annex get`"),
    "safetensors": (safetensors(), "a safetensors file; convert the folder of the checkpoint with `chaski"),
    "pickle": (pickle.dumps([1], 2), "a PyTorch checkpoint; get the model as GGUF or safetensors"),
    "PyTorch": (archive("archive/data.pkl", "archive/version"), "a PyTorch checkpoint"),
    "zip": (archive("model.gguf"), "a zip archive; unpack it, and use the file inside"),
    "gzip": (gzip.compress(b"x"), "a gzip archive; unpack it"),
    "xz": (b"\xfd7zXZ\x00\x00", "an xz archive; unpack it"),
    "tar": (b"model.gguf".ljust(257, b"\0") + b"ustar\x0000", "a tar archive; unpack it"),
    "old": (b"tjgg\x03\0\0\0", "an old GGML file, which GGUF replaced in 2023"),
    "program": (b"MZqFpD='\n", "a program; if it is a llamafile, get the model as GGUF"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_gguf_is_recognized(tmp_path: Path, name: str) -> None:
    data, message = FILES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    assert str(caught.value).startswith(f"{path}: not a GGUF file: it is ")
    assert message in str(caught.value)
    if name != "safetensors":
        with pytest.raises(FormatError, match="not a safetensors file: it is "):
            open_safetensors(path)


def test_other_bytes_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"\x01\x02\x03\x04" + bytes(100))
    assert recognized(path.read_bytes()) is None
    with pytest.raises(GGUFError, match=r"not a GGUF file: it begins with b'\\x01\\x02\\x03\\x04'"):
        open_gguf(path)


def test_a_text_may_end_within_a_character() -> None:
    assert "a text (" in str(recognized(("ä" * 20 + "\n" + "ä" * HEAD_BYTES).encode()[:HEAD_BYTES]))


def test_a_truncated_file_says_so(tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "part.gguf"
    for size in (3, 20, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            GGUFError, match=r"truncated: .*; the file is incomplete: download or copy it again$"
        ):
            open_gguf(path)
