"""Recognizes files that are no weights, or weights in another format, by their first bytes."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

__all__ = ["HEAD_BYTES", "recognized"]

HEAD_BYTES = 1024
"""The number of first bytes that suffice."""

_AGAIN = "download the file again"
_UNPACK = "unpack it, and use the file inside"
_CHECKPOINT = "convert the folder of the checkpoint with `chaski convert FOLDER OUT.gguf`"
_PICKLE = (
    "a PyTorch checkpoint; get the model as GGUF or safetensors, since loading such a file can run programs"
)
_OLD = "an old GGML file, which GGUF replaced in 2023; get the model as GGUF"
_PAGE = f"an HTML page, often a login or an error page of a website; {_AGAIN}, from its direct link"
_PROGRAM = "a program; if it is a llamafile, get the model as GGUF"

# Beginnings of files, and what begins with them.
_BEGINNINGS: dict[bytes, str] = {
    **dict.fromkeys((b"lmgg", b"fmgg", b"tjgg", b"algg"), _OLD),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), _PICKLE),
    **dict.fromkeys((b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"#!"), _PROGRAM),
    b"PK\x03\x04": f"a zip archive; {_UNPACK}",
    b"\x1f\x8b": f"a gzip archive; {_UNPACK}",
    b"BZh": f"a bzip2 archive; {_UNPACK}",
    b"\xfd7zXZ\x00": f"an xz archive; {_UNPACK}",
    b"\x28\xb5\x2f\xfd": f"a Zstandard archive; {_UNPACK}",
    b"7z\xbc\xaf\x27\x1c": f"a 7-Zip archive; {_UNPACK}",
    b"Rar!": f"a RAR archive; {_UNPACK}",
    b"\x89HDF": f"an HDF5 file; {_CHECKPOINT}, which needs safetensors",
    b"\x93NUMPY": "a NumPy array; get the model as GGUF",
    b"%PDF": f"a PDF document; {_AGAIN}, from its direct link",
    b"\x89PNG": "a PNG picture; a picture belongs into the prompt",
    b"\xff\xd8\xff": "a JPEG picture; a picture belongs into the prompt",
    b"FUGG": "a GGUF file with reversed bytes; get the little-endian one",
}
_LFS = b"version https://git-lfs.github.com/spec/"
_PARTIAL_BYTES = 256


def recognized(head: bytes) -> str | None:
    """Return what a file is that begins with these bytes, and what to do; None if that is not known.

    The text follows "it is". head: the first `HEAD_BYTES` of the file, or all bytes of a shorter one.
    """
    if not head:
        return f"empty; {_AGAIN}"
    if not any(head) and len(head) >= _PARTIAL_BYTES:
        return f"filled with zeros, like an unfinished download; {_AGAIN}"
    if head.startswith(_LFS):
        return _lfs_pointer(head)
    if head.startswith(b"PK\x03\x04") and (b"data.pkl" in head or b"/version" in head):
        return _PICKLE
    if found := next((what for begin, what in _BEGINNINGS.items() if head.startswith(begin)), None):
        return found
    if head[257:262] == b"ustar":
        return f"a tar archive; {_UNPACK}"
    # A safetensors file begins with the length of a header in JSON.
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 30:
        return f"a safetensors file; {_CHECKPOINT}"
    return _text(head)


def _lfs_pointer(head: bytes) -> str:
    size = re.search(rb"^size (\d+)$", head, re.MULTILINE)
    real = f" to a file of {int(size[1]):,} bytes" if size else ""
    return f"a Git LFS pointer{real}; run `git lfs pull` in its repository, or download the file itself"


def _text(head: bytes) -> str | None:
    """Return what a text is; None for binary data."""
    try:
        # The head may end within a character.
        text = getincrementaldecoder("utf-8-sig")().decode(head).lstrip()
    except UnicodeDecodeError:
        return None
    if re.match(r"<!doctype html|<html|<head|<body", text, re.IGNORECASE):
        return _PAGE
    if any(ord(char) < 32 and char not in "\t\r\n\f" for char in text) or len(text) < 8:
        return None
    begin = " ".join(text[:60].split())
    if text.startswith("<?xml"):
        return f"an XML text, often an error of a website; {_AGAIN}"
    if text.startswith(("{", "[")):
        return f"a JSON text ({begin!r}), often an error of a website; {_AGAIN}"
    if "/annex/objects/" in text:
        return "a git-annex pointer; run `git annex get` in its repository"
    if re.search(r"^from\s+\S", text, re.IGNORECASE | re.MULTILINE):
        return "a Modelfile; create a model from it with `chaski create NAME -f FILE`"
    return f"a text ({begin!r}); {_AGAIN}"
