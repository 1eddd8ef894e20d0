"""Files of blocks: one file per block. The file's name identifies the block and its parts.

    <before>-<name>-<begin>-<number of tokens>-<parts>.block

The parts of each leaf of the cache are positions, `first_last` or a state's one, with `+` between them and
`,` between leaves. A file has a line of magic, the size and checksum of its head, the head in JSON (its own
name, tokens, and size and checksum of each part), and the parts. It appears under its name when it is
complete. So an index is a list of names, several processes may use a folder at once, and sizes and checksums
reveal the leftovers of a crash.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import FormatError
from chaski.kvcache import Span
from chaski.regular_files import regular_descriptor
from chaski.runner.prefix import naming
from chaski.runner.prefix.blocks import Block, Part

__all__ = [
    "SUFFIX",
    "TEMPORARY",
    "FiledBlock",
    "Take",
    "appearing",
    "block_of",
    "new_memory",
    "opened",
    "pieces",
    "read_block",
    "read_bytes",
    "read_tokens",
    "remove_abandoned",
    "write_all",
    "write_block",
]

U8 = npt.NDArray[np.uint8]
Take = Callable[[int, int], U8]
"""Returns an array of some bytes for a part of a leaf of the cache."""

SUFFIX = ".block"
TEMPORARY = ".tmp"
# Files that a crash left half written are removed after this many seconds.
_ABANDONED = 3600.0


_MAGIC = b"chaski prefix block 1\n"
_HEAD = struct.Struct("<II")
_MAX_HEAD = 1 << 20
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,9})-(\d{1,3})-([0-9_+,]*)\.block")


class FiledBlock(Struct, frozen=True):
    """A block as the name of its file describes it. `num_bytes` is the size of its parts in memory."""

    name: bytes
    before: bytes
    begin: int
    end: int
    parts: tuple[tuple[Span, ...], ...]
    num_bytes: int = 0

    @classmethod
    def parse(cls, file_name: str) -> FiledBlock | None:
        """Return the block of a file; None for another file."""
        found = _NAME.fullmatch(file_name)
        if found is None:
            return None
        before, name, begin, count, parts = found.groups()
        try:
            spans = tuple(_spans(part, int(begin)) for part in parts.split(","))
        except ValueError:
            return None
        end = int(begin) + int(count)
        if not 0 < int(count) <= naming.BLOCK or int(begin) % naming.BLOCK:
            return None
        return cls(bytes.fromhex(name), bytes.fromhex(before), int(begin), end, spans)

    @classmethod
    def of(cls, block: Block) -> FiledBlock:
        """Describe a block in memory."""
        parts = tuple(tuple((part.begin, part.end) for part in parts) for parts in block.parts)
        return cls(block.name, block.before, block.begin, block.end, parts, block.num_bytes)

    @property
    def file_name(self) -> str:
        """The name of its file."""
        parts = ",".join("+".join(_written(span, self.begin) for span in spans) for spans in self.parts)
        count = self.end - self.begin
        return f"{self.before.hex()}-{self.name.hex()}-{self.begin}-{count}-{parts}{SUFFIX}"

    def spans(self, leaf: int) -> Sequence[Span]:
        """The positions of its parts for a leaf of the cache."""
        return self.parts[leaf]


def _spans(text: str, begin: int) -> tuple[Span, ...]:
    """Read the parts of a leaf. Raises ValueError."""
    found = []
    for word in filter(None, text.split("+")):
        first, _, last = word.partition("_")
        span = int(first) + begin, int(last or first) + begin
        if not begin <= span[0] <= span[1] <= begin + naming.BLOCK:
            raise ValueError(f"a part at {span}")
        found.append(span)
    return tuple(found)


def _written(span: Span, begin: int) -> str:
    first, last = span[0] - begin, span[1] - begin
    return f"{first}" if first == last else f"{first}_{last}"


def pieces(block: Block) -> list[memoryview]:
    """Return the content of the file of a block, in pieces."""
    parts = [part for parts in block.parts for part in parts]
    tails = [[part.data.nbytes, crc32(part.data.data)] for part in parts]
    described = {"file": FiledBlock.of(block).file_name, "tokens": block.tokens, "parts": tails}
    head = json.dumps(described, separators=(",", ":")).encode()
    lead = _MAGIC + _HEAD.pack(len(head), crc32(head)) + head
    return [memoryview(lead), *(part.data.data for part in parts)]


def opened(path: Path, flags: int = os.O_RDONLY) -> FileIO:
    """Open a regular file, which may exist already. Raises OSError, for a pipe or a device too."""
    return FileIO(regular_descriptor(path, flags), "rb" if flags == os.O_RDONLY else "rb+")


@contextmanager
def appearing(path: Path) -> Iterator[FileIO]:
    """Open a file that only its owner may read, and that appears at `path` when it is complete.

    An error removes it. Raises OSError.
    """
    temporary = path.parent / f"{secrets.token_hex(8)}.{os.getpid()}{TEMPORARY}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with FileIO(descriptor, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def remove_abandoned(temporary: os.DirEntry[str]) -> None:
    """Remove a file that has not appeared for so long that a crash must have left it. Raises OSError."""
    if abs(time.time() - temporary.stat(follow_symlinks=False).st_mtime) > _ABANDONED:
        os.unlink(temporary.path)


def write_all(file: FileIO, written: Iterable[memoryview]) -> int:
    """Write pieces one after the other -> their bytes. Raises OSError."""
    total = 0
    for data in written:
        while data:
            count = file.write(data)
            data, total = data[count:], total + count
    return total


def write_block(folder: Path, block: Block) -> int:
    """Write the file of a block -> its bytes. Raises OSError."""
    with appearing(folder / FiledBlock.of(block).file_name) as file:
        return write_all(file, pieces(block))


def read_tokens(folder: Path, filed: FiledBlock) -> tuple[int, ...]:
    """Read the tokens of a block. Raises OSError, or FormatError where the file is damaged."""
    with opened(folder / filed.file_name) as file:
        data = file.read(_LEAD_BYTES)
    return _tokens(_head(data, filed)[0], filed)


_LEAD_BYTES = 64 << 10


def new_memory(leaf: int, num_bytes: int) -> U8:
    """Return an array (num_bytes,) of any content, for a part of a block."""
    return np.empty(num_bytes, np.uint8)


def read_block(
    folder: Path, filed: FiledBlock, sizes: Sequence[Sequence[int]], take: Take = new_memory
) -> Block:
    """Read a block whose parts have these sizes, leaf by leaf, into what `take` gives for each.

    Raises OSError, or FormatError where anything is not as it was written.
    """
    path = folder / filed.file_name
    with opened(path) as file:
        return block_of(path, filed, sizes, file, os.fstat(file.fileno()).st_size, take)


def read_bytes(file: FileIO, count: int) -> U8:
    """Read that many bytes -> (bytes,), fewer where the file ends before. Raises OSError."""
    data = np.empty(count, np.uint8)
    return data[: _read_into(file, data)]


def _read_into(file: FileIO, data: U8) -> int:
    """Fill an array as far as the file goes -> bytes."""
    view, done = data.data, 0
    while done < len(view) and (more := file.readinto(view[done:])):
        done += more
    return done


def block_of(
    path: Path,
    filed: FiledBlock,
    sizes: Sequence[Sequence[int]],
    file: FileIO,
    size: int,
    take: Take = new_memory,
) -> Block:
    """Read a block, whose content are the next `size` bytes of a file, as `read_block` does."""
    lead_bytes = size - sum(map(sum, sizes))
    if not 0 < lead_bytes <= _MAX_HEAD:
        raise FormatError(f"{path}: {size} bytes are too many, or too few")
    head, begin = _head(bytes(read_bytes(file, lead_bytes)), filed)
    tokens = _tokens(head, filed)
    described = iter(_described(head, filed))
    parts: list[list[Part]] = []
    if begin != lead_bytes:
        raise FormatError(f"{path}: its head and its parts are not all of it")
    for leaf, (spans, bytes_each) in enumerate(zip(filed.parts, sizes, strict=True)):
        parts.append([])
        for (first, last), num_bytes in zip(spans, bytes_each, strict=True):
            written, checksum = next(described, (0, 0))
            part = take(leaf, num_bytes)
            if written != num_bytes or _read_into(file, part) != num_bytes or crc32(part.data) != checksum:
                raise FormatError(f"{path}: tokens {first} to {last} are not as they were written")
            parts[-1].append(Part(first, last, part))
    return Block(filed.name, filed.before, filed.begin, tokens, tuple(map(tuple, parts)))


def _head(data: bytes, filed: FiledBlock) -> tuple[dict[str, Any], int]:
    """Return the head at the beginning of a file, and where it ends."""
    begin = len(_MAGIC) + _HEAD.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < begin:
        raise FormatError(f"{filed.file_name}: no block of this version")
    size, checksum = _HEAD.unpack_from(data, len(_MAGIC))
    text = data[begin : begin + size]
    if len(text) != size or crc32(text) != checksum:
        raise FormatError(f"{filed.file_name}: its head is not as it was written")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(f"{filed.file_name}: its head cannot be read") from None
    if not isinstance(head, dict) or head.get("file") != filed.file_name:
        raise FormatError(f"{filed.file_name}: the file of another block")
    return head, begin + size


def _tokens(head: dict[str, Any], filed: FiledBlock) -> tuple[int, ...]:
    tokens = head.get("tokens")
    if not isinstance(tokens, list) or len(tokens) != filed.end - filed.begin:
        raise FormatError(f"{filed.file_name}: its tokens do not match its name")
    if not all(isinstance(token, int) for token in tokens):
        raise FormatError(f"{filed.file_name}: its tokens are not numbers")
    return tuple(tokens)


def _described(head: dict[str, Any], filed: FiledBlock) -> list[tuple[int, int]]:
    try:
        return [(int(num_bytes), int(checksum)) for num_bytes, checksum in head["parts"]]
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{filed.file_name}: its parts are not described") from None
