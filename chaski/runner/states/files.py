"""Files of saved states: the blocks of one sequence, and a head that describes them.

A file has a line of magic, the blocks as they are in their own files, the head in JSON, and the size and
checksum of the head. The head names the blocks, and what their numbers depend on.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec import Struct

from chaski.errors import FormatError, StateError
from chaski.runner.prefix import naming
from chaski.runner.prefix.block_files import (
    TEMPORARY,
    FiledBlock,
    appearing,
    block_of,
    opened,
    pieces,
    read_bytes,
    remove_abandoned,
    write_all,
)
from chaski.runner.prefix.blocks import Block

__all__ = ["StateHead", "StateSummary", "bytes_beside", "read_state", "summary", "write_state"]

_MAGIC = b"chaski state 1\n"
_TAIL = struct.Struct("<II")
_MAX_HEAD = 16 << 20

Sizes = Callable[[FiledBlock], Sequence[Sequence[int]] | None]


class StateHead(Struct, frozen=True):
    """The head of a state.

    origin       all that its numbers depend on, see `PrefixTiers`
    first        the first name of its sequence
    adapter_key  key of the adapters that it was computed with
    """

    origin: Mapping[str, str]
    first: bytes
    adapter_key: str


def write_state(
    path: Path, head: StateHead, blocks: Iterable[Block], max_bytes: int | None = None
) -> tuple[list[FiledBlock], int]:
    """Write a state -> its blocks, and the bytes of the file.

    `blocks` are those of the sequence in order. The file replaces an earlier one when it is complete. Raises
    StateError where nothing can be written, or the file would have more than `max_bytes`.
    """
    written: list[FiledBlock] = []
    sizes: list[int] = []

    def check_room(file: FileIO, content: Sequence[memoryview]) -> None:
        if max_bytes is not None and file.tell() + sum(each.nbytes for each in content) > max_bytes:
            raise StateError(
                f"{path}: the state takes more than the {max_bytes:,} bytes that are left for it; "
                "CHASKI_STATES_SIZE sets what all states of the folder may take"
            )

    try:
        with appearing(path) as file:
            write_all(file, [memoryview(_MAGIC)])
            for block in blocks:
                content = pieces(block)
                check_room(file, content)
                written.append(FiledBlock.of(block))
                sizes.append(write_all(file, content))
            if not written:
                raise StateError(f"{path}: no part of the prompt is held any longer, so there is no state")
            listed = [[filed.file_name, size] for filed, size in zip(written, sizes, strict=True)]
            about = {"origin": dict(head.origin), "first": head.first.hex(), "adapters": head.adapter_key}
            text = json.dumps({**about, "blocks": listed}, separators=(",", ":")).encode()
            end = [memoryview(text + _TAIL.pack(len(text), crc32(text)))]
            check_room(file, end)
            write_all(file, end)
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        raise StateError(f"{path} cannot be written: {_reason(error)}") from None
    return written, len(_MAGIC) + sum(sizes) + len(text) + _TAIL.size


class StateSummary(Struct, frozen=True):
    """The head of a state in short: the name of its model, and its number of tokens."""

    model: str
    tokens: int


def summary(path: Path) -> StateSummary:
    """Read the head of a state only. Raises FormatError, and StateError for a file that cannot be read."""
    with _opened(path) as file:
        described, _ = _described(path, file, _total(path, file))
        head = _head(path, described)
        return StateSummary(head.origin.get("name", "?"), _listed(path, described, head.first)[-1][0].end)


def bytes_beside(path: Path) -> int:
    """Return the bytes of all files next to a file, and remove leftovers of a crash."""
    total = 0
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            with suppress(OSError):  # it has just gone
                if entry.name.endswith(TEMPORARY):
                    remove_abandoned(entry)
                if entry.name != path.name and entry.is_file(follow_symlinks=False):
                    total += os.lstat(entry.path).st_size  # entry.stat would still know a removed one
    return total


def read_state(
    path: Path, check: Callable[[StateHead], None], sizes: Sizes, max_bytes: int
) -> tuple[list[Block], int]:
    """Read a state -> its blocks, and the bytes of the file.

    check      called with the head before anything else is read; it may raise
    sizes      returns the bytes of each part of a block, leaf by leaf; None for one of other layers
    max_bytes  the bytes that the blocks may have in memory

    Raises FormatError where anything is not as it was written, and StateError for a file that is not there or
    cannot be read, and for a state that is too large.
    """
    with _opened(path) as file:
        return _read(path, file, check, sizes, max_bytes)


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """Open a file to be read. Raises StateError for any OSError while it is read."""
    try:
        with opened(path) as file:
            yield file
    except FileNotFoundError:
        raise StateError(f"{path}: the state cannot be read: the file does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        raise StateError(f"{path}: the state cannot be read: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _total(path: Path, file: FileIO) -> int:
    """Return the bytes of a file that begins as a state. Raises FormatError for another one."""
    if bytes(read_bytes(file, len(_MAGIC))) != _MAGIC:
        raise FormatError(f"{path}: no saved state of this version")
    return os.fstat(file.fileno()).st_size


def _read(
    path: Path, file: FileIO, check: Callable[[StateHead], None], sizes: Sizes, max_bytes: int
) -> tuple[list[Block], int]:
    total = _total(path, file)
    described, end = _described(path, file, total)
    head = _head(path, described)
    check(head)
    listed = _listed(path, described, head.first)
    if len(_MAGIC) + sum(size for _, size in listed) != end:
        raise FormatError(f"{path}: its blocks do not match its header")
    parts = [sizes(filed) for filed, _ in listed]
    if None in parts:
        raise FormatError(f"{path}: its blocks are of other layers than those of this model")
    needed = sum(sum(map(sum, each)) for each in parts if each is not None)
    if needed > max_bytes:
        raise StateError(
            f"{path}: the state takes {needed:,} bytes of memory, and the prefix cache may take "
            f"{max_bytes:,}; CHASKI_PREFIX_CACHE_MEMORY sets that"
        )
    file.seek(len(_MAGIC))
    blocks = []
    for (filed, size), each in zip(listed, parts, strict=True):
        assert each is not None
        block = block_of(path, filed, each, file, size)
        if naming.block_name(filed.before, block.tokens) != filed.name:
            raise FormatError(f"{path}: tokens {filed.begin} to {filed.end} are not those of their name")
        blocks.append(block)
    return blocks, total


def _described(path: Path, file: FileIO, total: int) -> tuple[dict[str, Any], int]:
    """Return the content of the head, and where it begins."""
    end = total - _TAIL.size
    if end < len(_MAGIC):
        raise FormatError(f"{path}: the saved state is cut off")
    file.seek(end)
    tail = bytes(read_bytes(file, _TAIL.size))
    size, checksum = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0)
    begin = end - size
    if size > _MAX_HEAD or begin < len(_MAGIC):
        raise FormatError(f"{path}: the saved state is cut off, or its end is not as it was written")
    file.seek(begin)
    text = bytes(read_bytes(file, size))
    if len(text) != size or crc32(text) != checksum:
        raise FormatError(f"{path}: the saved state is cut off, or its head is not as it was written")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: the head of the saved state cannot be read")
    return found, begin


def _head(path: Path, described: Mapping[str, Any]) -> StateHead:
    origin, first, adapters = (described.get(name) for name in ("origin", "first", "adapters"))
    if isinstance(origin, dict) and isinstance(first, str) and isinstance(adapters, str):
        with suppress(ValueError):
            return StateHead({name: str(origin[name]) for name in origin}, bytes.fromhex(first), adapters)
    raise FormatError(f"{path}: the header of the saved state does not identify its content")


def _listed(path: Path, described: Mapping[str, Any], first: bytes) -> list[tuple[FiledBlock, int]]:
    """Return the blocks that a head names, with their bytes in the file."""
    listed = described.get("blocks")
    found: list[tuple[FiledBlock, int]] = []
    before = first
    for each in listed if isinstance(listed, list) else ():
        name, size = each if isinstance(each, list) and len(each) == 2 else (None, None)
        filed = FiledBlock.parse(name) if isinstance(name, str) else None
        is_behind = (not found or found[-1][0].end == len(found) * naming.BLOCK) and filed is not None
        if filed is None or not is_behind or filed.begin != len(found) * naming.BLOCK:
            raise FormatError(f"{path}: block {len(found)} of the saved state is not what follows")
        if filed.before != before or type(size) is not int or size < 0:
            raise FormatError(f"{path}: block {len(found)} of the saved state is not what follows")
        found.append((filed, size))
        before = filed.name
    if not found:
        raise FormatError(f"{path}: the saved state has no blocks")
    return found
