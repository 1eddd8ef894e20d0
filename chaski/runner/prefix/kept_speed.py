"""The speed of a model's prompts, kept next to its blocks for the next process.

It only decides whether blocks are copied or tokens computed: a wrong speed costs time, and the first computed
prompt replaces it. A missing or damaged file means an unknown speed.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from chaski.runner.prefix.block_files import TEMPORARY, opened

__all__ = ["SPEED_FILE", "read_speed", "write_speed"]

SPEED_FILE = "speed.txt"

_MOST_BYTES = 64
# Tokens a second that any machine might have.
_SLOWEST, _FASTEST = 1e-3, 1e9


def read_speed(folder: Path) -> float | None:
    """Return the tokens a second that were kept; None where nothing can be read."""
    try:
        with opened(folder / SPEED_FILE) as file:
            rate, checksum = file.read(_MOST_BYTES).split()
        found = float(rate)
        is_whole = int(checksum, 16) == crc32(rate)
    except (OSError, ValueError):
        return None
    return found if is_whole and _SLOWEST <= found <= _FASTEST else None


def write_speed(folder: Path, rate: float) -> None:
    """Keep a speed, if the folder exists and is writable."""
    text = f"{rate:.4g}".encode()
    temporary = folder / f"{secrets.token_hex(8)}{TEMPORARY}"
    with suppress(OSError):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"%s %08x\n" % (text, crc32(text)))
            os.replace(temporary, folder / SPEED_FILE)
        except OSError:
            os.unlink(temporary)
