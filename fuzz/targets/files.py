"""GGUF and safetensors files, and imatrix files, as their readers see them."""

from __future__ import annotations

import random
import struct

import numpy as np

from chaski.errors import FormatError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile, GGUFValue, StringArray, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.safetensors import SafeTensor, open_safetensors
from fuzz.gguf_form import mutate_gguf, whole_file
from fuzz.mutations import mixed, mutate_bytes, mutate_json
from fuzz.scratch import folder, written
from fuzz.target import Target

__all__ = ["TARGETS"]


def gguf(data: bytes) -> None:
    """A file is read or refused, and a file that was read equals itself after it is written and read again.

    Also dequantizes all tensors.
    """
    with open_gguf(written(whole_file(data), "input.gguf")) as file:
        for info in file.tensors.values():
            dequantize(info.data, info.type, info.shape)
        rewritten = folder() / "rewritten.gguf"
        try:
            write_gguf(rewritten, dict(file.metadata), {name: _lazy(file, name) for name in file.tensors})
        except FormatError:
            return  # the writer refuses some files that the reader takes, such as those without a key's type
        with open_gguf(rewritten) as again:
            _assert_equal(file, again)


def _lazy(file: GGUFFile, name: str) -> LazyTensor:
    info = file.tensors[name]
    return LazyTensor(
        info.shape, info.type, lambda: [np.ascontiguousarray(info.data).reshape(-1).view(np.uint8)]
    )


def _assert_equal(one: GGUFFile, other: GGUFFile) -> None:
    assert list(one.metadata) == list(other.metadata), "keys differ"
    for key, value in one.metadata.items():
        assert _plain(value) == _plain(other.metadata[key]), f"{key!r} differs"
    assert list(one.tensors) == list(other.tensors), "tensors differ"
    for name, info in one.tensors.items():
        again = other.tensors[name]
        assert (info.shape, info.type) == (again.shape, again.type), f"{name!r} differs"
        assert info.data.tobytes() == again.data.tobytes(), f"the content of {name!r} differs"


def _plain(value: GGUFValue) -> object:
    """Return a value that can be compared; numbers as their bytes, for NaN."""
    if isinstance(value, StringArray):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return np.asarray(value).tobytes() if isinstance(value, np.ndarray | float) else value


def safetensors(data: bytes) -> None:
    """A file is read or refused; its tensors do not overlap and fill the file."""
    found = open_safetensors(written(data, "input.safetensors"))
    header = 8 + int.from_bytes(data[:8], "little")
    assert sum(tensor.data.nbytes for tensor in found.values()) == len(data) - header
    for tensor in found.values():
        assert isinstance(tensor, SafeTensor)
        tensor.data.tobytes()


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the header as JSON, and write its length again."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = mutate_json(data[8:end], rng)
    return struct.pack("<Q", len(header)) + header + data[end:]


TARGETS = (
    Target("gguf", gguf, mutate_gguf),
    Target("safetensors", safetensors, mixed(mutate_safetensors, mutate_safetensors, mutate_bytes)),
)
