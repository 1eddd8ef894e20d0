"""Files of the prefix cache and of saved states."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

import numpy as np

from chaski.errors import FormatError
from chaski.runner.prefix.block_files import FiledBlock, pieces, read_block, read_tokens
from chaski.runner.prefix.blocks import Block, Part
from chaski.runner.prefix.naming import BLOCK, block_name
from chaski.runner.states.files import StateHead, read_state, summary, write_state
from fuzz.mutations import mixed, mutate_bytes, mutate_json
from fuzz.scratch import folder, written
from fuzz.target import Target

__all__ = ["TARGETS", "blocks", "state_file"]

_HEAD = struct.Struct("<II")
_FIRST = bytes(range(16))
_PART_BYTES = 24
_MAGIC_BYTES = len(b"chaski prefix block 1\n")


def blocks() -> list[Block]:
    """Return two blocks of a sequence: a whole one and the beginning of another, each of two layers."""
    found, before = [], _FIRST
    for begin, count in ((0, BLOCK), (BLOCK, 5)):
        tokens = tuple(range(begin, begin + count))
        name = block_name(before, tokens)
        part = Part(begin, begin + count, np.arange(_PART_BYTES, dtype=np.uint8))
        found.append(Block(name, before, begin, tokens, ((part,), (part,))))
        before = name
    return found


def state_file() -> bytes:
    """Return a saved state of these blocks."""
    path = folder() / "whole.state"
    write_state(path, StateHead({"name": "tiny", "rule": "1"}, _FIRST, ""), blocks())
    return path.read_bytes()


def prefix_block(data: bytes) -> None:
    """A file of the prefix cache is refused, or it has the block of its name. So has it with any bit changed.

    The file of the input has the name of a block whose checksums are valid.
    """
    filed = FiledBlock.of(blocks()[1])
    written(data, filed.file_name)
    with suppress(FormatError):
        read_tokens(folder(), filed)
    block = read_block(folder(), filed, _sizes(filed))
    assert (block.name, block.before, block.begin) == (filed.name, filed.before, filed.begin)
    assert len(block.tokens) == filed.end - filed.begin
    place = random.Random(crc32(data)).randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    written(bytes(changed), filed.file_name)
    with suppress(FormatError):
        other = read_block(folder(), filed, _sizes(filed))
        assert b"".join(pieces(other)) == b"".join(pieces(block))


def block_name_of_file(data: bytes) -> None:
    """A name of a file belongs to no block, or to a block that writes a name of the same meaning."""
    filed = FiledBlock.parse(data.decode("utf-8", "replace"))
    if filed is not None:
        assert FiledBlock.parse(filed.file_name) == filed


def state(data: bytes) -> None:
    """A saved state is refused, or its blocks are written as a state with the same blocks."""
    path = written(data, "input.state")
    with suppress(FormatError):
        summary(path)
    found, _ = read_state(path, lambda head: None, _sizes, 1 << 20)
    again = folder() / "again.state"
    write_state(again, StateHead({"name": "tiny"}, _FIRST, ""), found)
    other, _ = read_state(again, lambda head: None, _sizes, 1 << 20)
    assert [b"".join(pieces(block)) for block in other] == [b"".join(pieces(block)) for block in found]


def _sizes(filed: FiledBlock) -> Sequence[Sequence[int]]:
    return [[_PART_BYTES] * len(spans) for spans in filed.parts]


def mutate_block(data: bytes, rng: random.Random) -> bytes:
    """Change the head of a block, and write its size and checksum again."""
    size, _ = _HEAD.unpack_from(data.ljust(_MAGIC_BYTES + _HEAD.size), _MAGIC_BYTES)
    begin = _MAGIC_BYTES + _HEAD.size
    text = mutate_json(data[begin : begin + size], rng)
    return data[:_MAGIC_BYTES] + _HEAD.pack(len(text), crc32(text)) + text + data[begin + size :]


def mutate_state(data: bytes, rng: random.Random) -> bytes:
    """Change the head of a state, which is at its end, and write its size and checksum again."""
    if len(data) < _HEAD.size:
        return mutate_bytes(data, rng)
    size, _ = _HEAD.unpack(data[-_HEAD.size :])
    begin = max(0, len(data) - _HEAD.size - size)
    text = mutate_json(data[begin : -_HEAD.size], rng)
    return data[:begin] + text + _HEAD.pack(len(text), crc32(text))


TARGETS = (
    Target("prefix-block", prefix_block, mixed(mutate_block, mutate_block, mutate_bytes)),
    Target("block-name", block_name_of_file, mutate_bytes),
    Target("state", state, mixed(mutate_state, mutate_state, mutate_bytes)),
)
