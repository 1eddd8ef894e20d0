"""Names of blocks: hashes of all tokens up to the block's end, and of all else that its numbers depend on.

A block has `BLOCK` tokens of a sequence, from a position that is a multiple of it. Its name is a hash of the
name before it and of its tokens, so that equal names mean equal histories. The first name before all others
stands for the model and the request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

__all__ = ["BLOCK", "block_name", "chain_names", "first_name"]

BLOCK = 256
"""Tokens of a block: those of a chunk of attention."""

_NAME_BYTES = 16


def first_name(identity: bytes, *parts: str) -> bytes:
    """Return the name before the first block of sequences of a model. `parts` keep others apart."""
    found = blake2b(identity, digest_size=_NAME_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part.encode("utf-8", "surrogatepass"))  # a half of a pair keeps others apart too
    return found.digest()


def block_name(before: bytes, tokens: Sequence[int]) -> bytes:
    """Return the name of the block of these tokens (BLOCK at most) after another one."""
    found = blake2b(before, digest_size=_NAME_BYTES)
    try:
        found.update(array("i", tokens))
    except OverflowError:  # rows of images are larger numbers
        found.update(b"rows" + repr(list(tokens)).encode())
    return found.digest()


def chain_names(first: bytes, tokens: Sequence[int]) -> list[bytes]:
    """Return the first name, and those of all whole blocks of a sequence after it."""
    names = [first]
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        names.append(block_name(names[-1], tokens[begin : begin + BLOCK]))
    return names
