"""The table of a SentencePiece normalizer: sequences of characters and their replacements.

Format: the size of a trie in bytes (uint32), the trie, and the replacements as UTF-8, each ended by a zero.
The trie is a double array of 32-bit units (https://github.com/s-yata/darts-clone), walked byte by byte.
A unit contains a label (bits 0 to 7), a flag for the end of a key (8), and the distance to its children (10
to 30, a multiple of 256 if bit 9 is set). A unit with bit 31 is the offset of a replacement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import cast

import numpy as np
from numpy.typing import NDArray

from chaski.errors import TokenizerError
from chaski.formats.gguf_metadata import kind_name
from chaski.text.tokenizer.vocabulary import PREFIX

__all__ = ["read_charsmap"]

_NAME = PREFIX + "precompiled_charsmap"
_LARGEST = 1 << 24  # bytes; the tables of Unicode's normal forms have 240,000
_LONGEST = 64  # bytes of a replacement; the longest one in Unicode's normal forms has 33
_SIZE = 4


def read_charsmap(metadata: Mapping[str, object]) -> bytes:
    """Return the table of a file, or an empty one. Raises `TokenizerError` for a damaged table.

    The check covers all units, including those that no key reaches. After it, no text leads a reader out of
    the table.
    """
    value = metadata.get(_NAME, ())
    if not isinstance(value, Sized) or isinstance(value, str):
        raise TokenizerError(f"{_NAME} is {kind_name(value)}, expected an array of bytes")
    if len(value) == 0:
        return b""
    if len(value) > _LARGEST:
        raise TokenizerError(f"{_NAME} has {len(value)} bytes; the limit is {_LARGEST}")
    table = _bytes(cast("object", value))
    size = int.from_bytes(table[:_SIZE], "little")
    if size % _SIZE or not 0 < size <= len(table) - _SIZE:
        raise TokenizerError(f"{_NAME} has {len(table)} bytes, but states a trie size of {size}")
    _check_trie(
        np.frombuffer(table, "<u4", size // _SIZE, _SIZE).astype(np.int64), _places(table[_SIZE + size :])
    )
    return table


def _bytes(value: object) -> bytes:
    numbers = np.asarray(value if isinstance(value, np.ndarray | list | bytes) else ())
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise TokenizerError(f"{_NAME} is not an array of bytes")
    if numbers.dtype.itemsize > 1 and not ((numbers >= 0) & (numbers < 256)).all():
        raise TokenizerError(f"{_NAME} contains a number that is not a byte")
    return numbers.astype(np.uint8).tobytes()


def _places(replacements: bytes) -> NDArray[np.bool_]:
    """Return where a replacement may begin: at the first byte of a character, or at the end of a text."""
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{_NAME}: byte {error.start} of its replacements is not UTF-8") from None
    if not replacements.endswith(b"\0"):
        raise TokenizerError(f"{_NAME}: its last replacement has no end")
    longest = max(map(len, replacements.split(b"\0")))
    if longest > _LONGEST:
        raise TokenizerError(f"{_NAME} has a replacement of {longest} bytes; the limit is {_LONGEST}")
    found: NDArray[np.bool_] = (np.frombuffer(replacements, np.uint8) & 0xC0) != 0x80
    return found


def _check_trie(units: NDArray[np.int64], places: NDArray[np.bool_]) -> None:
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & 1 << 9) >> 6))
    inner = (units >> 31) == 0
    inner[0] = True  # no unit refers to the root
    outside = inner & ((children | 0xFF) >= len(units))
    if outside.any():
        raise TokenizerError(f"{_NAME}: unit {outside.argmax()} of its trie has children outside the trie")
    ends = inner & (units >> 8 & 1 == 1)
    values = units[children[ends]] & (1 << 31) - 1
    known = np.append(places, False)[np.minimum(values, len(places))]
    if not known.all():
        bad = np.flatnonzero(ends)[(~known).argmax()]
        raise TokenizerError(f"{_NAME}: unit {bad} of its trie does not refer to the start of a replacement")
