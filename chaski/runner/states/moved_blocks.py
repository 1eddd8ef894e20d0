"""Files with all blocks that the prefix cache of a process has in memory, on their way to the next process.

A file has a head in JSON, and for each block its name and content. Sizes are before all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import msgspec
from msgspec import Struct

from chaski.errors import FormatError, StateError
from chaski.runner.prefix.block_files import FiledBlock, block_of, pieces, read_bytes, write_all
from chaski.runner.prefix.blocks import Block

__all__ = ["BlocksHead", "read_blocks", "write_blocks"]

_SIZE = struct.Struct("<Q")
_LEAD = struct.Struct("<IQ")
_MAX_HEAD = 16 << 20


class BlocksHead(Struct, frozen=True):
    """All that the numbers of blocks depend on, see `PrefixTiers`, and the pins of the cache."""

    origin: Mapping[str, str]
    pins: Sequence[tuple[bytes, float]] = ()


def write_blocks(path: Path, head: BlocksHead, blocks: Iterable[Block]) -> int:
    """Write blocks to an existing file -> its bytes. Raises StateError where it cannot be written."""
    text = msgspec.json.encode(head)
    try:
        with FileIO(path, "rb+") as file:
            write_all(file, [memoryview(_SIZE.pack(len(text)) + text)])
            for block in blocks:
                content = pieces(block)
                name = FiledBlock.of(block).file_name.encode()
                lead = _LEAD.pack(len(name), sum(piece.nbytes for piece in content)) + name
                write_all(file, [memoryview(lead), *content])
            return file.tell()
    except OSError as error:
        raise StateError(f"the prefix cache cannot be kept: {error.strerror}") from None


@contextmanager
def read_blocks(
    path: Path, sizes: Callable[[FiledBlock], Sequence[Sequence[int]] | None]
) -> Iterator[tuple[BlocksHead, Iterator[Block]]]:
    """Read a file: yield its head, and its blocks one by one. `sizes` is as in `read_state`.

    Raises StateError where it cannot be read, and FormatError where a block is not as it was written.
    """
    try:
        file = FileIO(path, "rb")
    except OSError as error:
        raise StateError(f"the prefix cache of another process cannot be read: {error.strerror}") from None
    with file:
        try:
            (size,) = _SIZE.unpack(bytes(read_bytes(file, _SIZE.size)))
            text = bytes(read_bytes(file, min(size, _MAX_HEAD)))
            head: BlocksHead = msgspec.json.decode(text, type=BlocksHead)
        except (struct.error, msgspec.MsgspecError) as error:
            raise StateError(f"the prefix cache of another process cannot be read: {error}") from None
        yield head, _blocks(path, file, sizes)


def _blocks(
    path: Path, file: FileIO, sizes: Callable[[FiledBlock], Sequence[Sequence[int]] | None]
) -> Iterator[Block]:
    while lead := bytes(read_bytes(file, _LEAD.size)):
        try:
            length, size = _LEAD.unpack(lead)
            filed = FiledBlock.parse(bytes(read_bytes(file, length)).decode())
        except (struct.error, UnicodeDecodeError):
            filed = None
        parts = None if filed is None else sizes(filed)
        if filed is None or parts is None:
            raise FormatError(f"{path}: no block of this model")
        yield block_of(path, filed, parts, file, size)
