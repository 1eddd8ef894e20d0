"""Calls about blocks of prompts, for a caller that chooses among several models: typed values.

Blocks are numbers here, the first eight bytes of their names. Two names with one number cost the time of a
prompt at most.
"""

from __future__ import annotations

from chaski.chat.requests import Chat, Fill, Generate
from chaski.chat.sendable import Sendable

__all__ = ["Blocks", "ListBlocks", "NameBlocks", "block_number"]


class NameBlocks(Sendable, frozen=True):
    """Answered by `Blocks`: the whole blocks of the prompt of a request, in their order."""

    request: Generate | Chat | Fill


class ListBlocks(Sendable, frozen=True):
    """Answered by `Blocks`: those that the prefix cache holds, in any order."""


class Blocks(Sendable, frozen=True):
    """Numbers of blocks, and how many tokens the prompt has, or all blocks together."""

    numbers: tuple[int, ...]
    num_tokens: int


def block_number(name: bytes) -> int:
    """Return the number of the block with this name."""
    return int.from_bytes(name[:8], "little")
