"""The bytes of a file of tensors, mapped into memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chaski.errors import FormatError, ModelNotFoundError
from chaski.regular_files import open_regular

__all__ = ["map_file"]


def map_file(path: Path, error: type[FormatError] = FormatError) -> NDArray[np.uint8]:
    """Map a file. Raises ModelNotFoundError, or `error` for a file that cannot be read."""
    try:
        with open_regular(path) as file:
            # A map cannot be empty; no bytes at all are reported as truncation like any other.
            is_empty = os.fstat(file.fileno()).st_size == 0
            mapped = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError):  # no file can have a name with NUL or half of a surrogate pair
        raise ModelNotFoundError(f"{path}: no such file") from None
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure.strerror}") from failure
    return np.frombuffer(mapped, np.uint8)
