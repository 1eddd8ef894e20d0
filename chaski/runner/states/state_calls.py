"""Calls about saved states: typed values, which may be sent to another process."""

from __future__ import annotations

from typing import TypeAlias

from chaski.chat.requests import Chat, Fill, Generate
from chaski.chat.sendable import Sendable

__all__ = [
    "EraseSlot",
    "KeepPrefixes",
    "LoadState",
    "SaveSlot",
    "SaveState",
    "SavedState",
    "StateCall",
    "TakePrefixes",
]


class SaveState(Sendable, frozen=True):
    """Compute the missing part of a prompt, and write its state to a file. Answered by `SavedState`.

    call  a request for an answer to the prompt; only what decides the prompt and its owner counts
    path  the file, by its absolute path
    """

    call: Generate | Chat | Fill
    path: str


class LoadState(Sendable, frozen=True):
    """Take the state of a file into memory. Answered by `SavedState`.

    path        the file, by its absolute path
    cache_salt  that of the request it was saved for
    """

    path: str
    cache_salt: str = ""


class SaveSlot(Sendable, frozen=True):
    """Write the state of the sequence in a slot to a file. Answered by `SavedState`.

    slot        number of the slot, from 0
    path        the file, by its absolute path
    cache_salt  a slot with another one counts as empty
    max_bytes   the bytes that the file may have; None for any number
    """

    slot: int
    path: str
    cache_salt: str = ""
    max_bytes: int | None = None


class EraseSlot(Sendable, frozen=True):
    """Forget the sequence in a slot, which is as in `SaveSlot`. Answered by `SavedState`."""

    slot: int
    cache_salt: str = ""


class KeepPrefixes(Sendable, frozen=True):
    """Write all blocks that the prefix cache has in memory to an existing file. Answered by `SavedState`.

    They are for another process that loads the same model. `path` is absolute.
    """

    path: str


class TakePrefixes(Sendable, frozen=True):
    """Take the blocks of such a file into memory, if they are of this model. Answered by `SavedState`."""

    path: str


StateCall: TypeAlias = SaveState | LoadState | SaveSlot | EraseSlot | KeepPrefixes | TakePrefixes


class SavedState(Sendable, frozen=True):
    """The report on a state that was saved, loaded or erased.

    tokens     the tokens that a prompt can take over with it
    num_bytes  the bytes of its file; 0 without a file
    seconds    the seconds that it took, without those of computing its prompt
    """

    tokens: int
    num_bytes: int
    seconds: float
