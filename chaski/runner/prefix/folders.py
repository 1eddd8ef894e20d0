"""The folder of the prefix cache on disk: a folder of blocks for each model, and operations on all."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from pathlib import Path

from msgspec import Struct

from chaski.runner.prefix.block_files import (
    SUFFIX,
    TEMPORARY,
    FiledBlock,
    appearing,
    opened,
    remove_abandoned,
    write_all,
)
from chaski.runner.prefix.kept_speed import SPEED_FILE
from chaski.runner.prefix.tree import LONGEST, SHARE

__all__ = ["FolderUse", "day_log", "folder_uses", "make_folder", "make_room", "remove_files", "used_bytes"]

_DESCRIPTION = "model.txt"
_DAY_LOG = "written.json"
# Blocks of a chain are used at times that differ a little, in seconds.
_EARLY = 1.0


class FolderUse(Struct, frozen=True):
    """The blocks of one model: `model` is the name that it was loaded by, `used` the time of the last use."""

    path: Path
    model: str
    num_blocks: int
    num_tokens: int
    num_bytes: int
    used: float


class DayLog(Struct):
    """Bytes that all processes have written today."""

    num_bytes: int


class _File(Struct, frozen=True):
    path: str
    name: bytes
    before: bytes
    num_tokens: int
    num_bytes: int
    used: float
    is_held: bool


def make_folder(folder: Path, description: str) -> None:
    """Make the folder of a model, which only its owner may enter, with its description. Raises OSError."""
    if (folder / _DESCRIPTION).is_file():
        return
    for each in (folder.parent.parent, folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    with appearing(folder / _DESCRIPTION) as file:
        write_all(file, [memoryview((description + "\n").encode())])


@contextmanager
def day_log(root: Path) -> Iterator[DayLog]:
    """Read how much was written today, and add the caller's bytes. Other processes wait meanwhile."""
    with opened(root / _DAY_LOG, os.O_RDWR | os.O_CREAT) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        today = datetime.now(UTC).date().isoformat()
        log = DayLog(0)
        with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            known = json.loads(file.read(4096))
            if known["day"] == today:
                log.num_bytes = max(0, int(known["bytes"]))
        try:
            yield log
        finally:
            # One write over content of the same length: a killed process leaves the old or the new one.
            file.seek(0)
            file.write(f'{{"day": "{today}", "bytes": {log.num_bytes:20}}}'.encode())
            file.truncate()


def folder_uses(root: Path) -> list[FolderUse]:
    """Return the use of all models, the most recently used first."""
    found = []
    for folder in _folders(root):
        files = list(_files(folder))
        used = max((file.used for file in files), default=0.0)
        total = sum(file.num_bytes for file in files)
        num_tokens = sum(file.num_tokens for file in files)
        found.append(FolderUse(folder, _description(folder), len(files), num_tokens, total, used))
    return sorted(found, key=lambda use: -use.used)


def used_bytes(root: Path) -> int:
    """Return the bytes of all blocks."""
    return sum(file.num_bytes for folder in _folders(root) for file in _files(folder))


def hold_file(path: Path, used: int, seconds: float = 0.0) -> None:
    """Count a file as used at a time in nanoseconds, and hold it for that many seconds from then on.

    The time until which it is held is that of its last access: it outlives the process, and all that share
    the folder see it. An earlier, longer hold is kept.
    """
    with suppress(OSError):
        held = max(seconds, _held_for(os.stat(path, follow_symlinks=False), time.time()))
        os.utime(path, ns=(used + int(held * 1e9), used))


def _held_for(stat: os.stat_result, now: float) -> float:
    """Return for how many seconds from its last use a file is held; 0 for one that is not held now.

    An implausible time, after the clock was set back or others set it, holds nothing.
    """
    seconds = stat.st_atime - stat.st_mtime
    is_held = now < stat.st_atime <= now + LONGEST + _EARLY and 0 < seconds <= LONGEST + _EARLY
    return min(round(seconds, 3), LONGEST) if is_held else 0.0


def make_room(root: Path, max_bytes: int) -> int:
    """Remove the least recently used blocks, until at most that many bytes are left -> the bytes left.

    A block is removed after its successors: they cannot be found without it. Held blocks stay, as far as they
    take half of the bytes.
    """
    files = {file.name: file for folder in _folders(root) for file in _files(folder)}
    num_behind = dict.fromkeys(files, 0)
    for file in files.values():
        if file.before in files:
            num_behind[file.before] += 1
    kept = _kept(files, max_bytes // SHARE)
    last = [(files[name].used, name) for name, count in num_behind.items() if not count and name not in kept]
    heapify(last)
    total = sum(file.num_bytes for file in files.values())
    while last and total > max_bytes:
        file = files[heappop(last)[1]]
        with suppress(OSError):
            os.unlink(file.path)
        total -= file.num_bytes
        if file.before in files:
            num_behind[file.before] -= 1
            if not num_behind[file.before] and file.before not in kept:
                heappush(last, (files[file.before].used, file.before))
    return total


def _kept(files: Mapping[bytes, _File], most: int) -> set[bytes]:
    """Return the files that are held, those that were used last first, in that many bytes.

    A file is listed together with its predecessors: it cannot be found without them.
    """
    found: set[bytes] = set()
    for file in sorted((file for file in files.values() if file.is_held), key=lambda file: -file.used):
        chain: list[_File] = []
        link: _File | None = file
        while link is not None and link.name not in found and len(chain) <= len(files):
            chain.append(link)
            link = files.get(link.before)
        if not all(link.is_held for link in chain):
            continue
        for each in reversed(chain):
            most -= each.num_bytes
            if most < 0:
                return found
            found.add(each.name)
    return found


def remove_files(root: Path, folder: Path | None = None, before: float | None = None) -> int:
    """Remove all blocks, those of one model, or those that were not used since `before` -> their bytes."""
    removed = 0
    for each in _folders(root) if folder is None else [folder]:
        for file in _files(each):
            if before is None or file.used < before:
                with suppress(FileNotFoundError):
                    os.unlink(file.path)
                    removed += file.num_bytes
        with suppress(OSError):
            if not any(name.endswith(SUFFIX) for name in os.listdir(each)):
                for name in (_DESCRIPTION, SPEED_FILE):
                    (each / name).unlink(missing_ok=True)
                each.rmdir()
    return removed


def _folders(root: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def _files(folder: Path) -> Iterator[_File]:
    """Yield the blocks of a folder; leftovers of a crash are removed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.endswith(TEMPORARY):
                    remove_abandoned(entry)
                    continue
                filed = FiledBlock.parse(entry.name)
                if filed is not None and entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    used = min(stat.st_mtime, time.time())  # a clock may have been set back
                    count = filed.end - filed.begin
                    is_held = _held_for(stat, time.time()) > 0
                    yield _File(entry.path, filed.name, filed.before, count, stat.st_size, used, is_held)


def _description(folder: Path) -> str:
    with suppress(OSError), opened(folder / _DESCRIPTION) as file:
        return file.read(800).decode(errors="replace")[:200].strip()
    return "?"
