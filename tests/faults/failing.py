"""Calls of the C library that fail: compile `failing_calls.c`, preload it, and arm it for an operation."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path

__all__ = ["Kind", "arm", "disarm", "has_compiler", "has_failed", "preloading"]

_SOURCE = Path(__file__).with_name("failing_calls.c")


class Kind(IntEnum):
    """What fails; the numbers of failing_calls.c.

    memory: allocations of chaski's core and of NumPy. open: files below the folder of the operation. length:
    changes of a file's length. socket: also sending and receiving.
    """

    memory = 1
    mmap = 2
    open = 3
    read = 4
    write = 5
    sync = 6
    rename = 7
    thread = 8
    socket = 9
    length = 10


def has_compiler() -> bool:
    """Return whether the library can be compiled and preloaded here."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def preloading(folder: Path) -> Mapping[str, str]:
    """Compile the library into `folder`, and return an environment that preloads it."""
    library = folder / "failing_calls.so"
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def arm(kind: Kind, number: int, and_all_after: bool, below: Path) -> None:
    """Let call `number` of a kind fail, from 1 on; 0 for none. Also all later ones, if asked."""
    _library().failing_calls_arm(int(kind), number, int(and_all_after), str(below).encode())


def disarm() -> int:
    """Let no more calls fail. Return how many there were of the kind."""
    return int(_library().failing_calls_disarm())


def has_failed() -> bool:
    """Return whether a call failed since it was armed."""
    return bool(_library().failing_calls_failed())


@cache
def _library() -> ctypes.CDLL:
    found = ctypes.CDLL(None)
    found.failing_calls_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
    found.failing_calls_disarm.restype = ctypes.c_long
    return found
