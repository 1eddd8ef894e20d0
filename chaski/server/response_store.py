"""`ResponseStore`: keep a limited number of responses in memory, so that later requests can continue them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from chaski.errors import ResponseNotFoundError
from chaski.server.network.jsons import dump

__all__ = ["ResponseStore", "StoredResponse"]

_MAX_BYTES = 64 << 20
_MAX_COUNT = 1000


class StoredResponse(Struct, frozen=True):
    """A response that later requests can continue.

    fields: the object that was sent to the client
    turns: the conversation, including this answer
    input: the input items of the request
    """

    fields: Mapping[str, Any]
    turns: Sequence[Mapping[str, Any]]
    input: Sequence[Mapping[str, Any]] = ()


class ResponseStore:
    """Responses by owner and id. The least recently used ones are dropped first."""

    def __init__(self, max_bytes: int = _MAX_BYTES, max_count: int = _MAX_COUNT) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._found: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._items: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._bytes = 0

    def add(self, owner: str, response: StoredResponse) -> None:
        """Add a response, and drop older ones beyond the limits."""
        size = sum(map(_size, response.turns)) + len(dump(response.fields)) + len(dump(response.input))
        self._found[owner, response.fields["id"]] = response, size
        self._items |= {(owner, item["id"]): item for item in _items(response)}
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._found) > self._max_count:
            self._drop(next(iter(self._found)))

    def get(self, owner: str, response_id: str) -> StoredResponse:
        """Return a response. Raises ResponseNotFoundError if it was dropped or has another owner."""
        key = (owner, response_id)
        if key not in self._found:
            raise ResponseNotFoundError(
                f"response '{response_id:.80}' not found: it was not stored (store: false), it was deleted, "
                "or the server dropped it, since only the most recent responses stay in memory; send the "
                "whole conversation as input instead"
            )
        self._found.move_to_end(key)
        return self._found[key][0]

    def remove(self, owner: str, response_id: str) -> None:
        """Delete a response. Raises ResponseNotFoundError."""
        self.get(owner, response_id)
        self._drop((owner, response_id))

    def find_item(self, owner: str, item_id: str) -> Mapping[str, Any]:
        """Return an item of a response. Raises ResponseNotFoundError."""
        # One lookup, since this may run in a thread while the event loop drops items.
        item = self._items.get((owner, item_id))
        if item is None:
            raise ResponseNotFoundError(
                f"item '{item_id:.80}' not found: its response was not stored (store: false), or the server "
                "dropped it; send the item itself instead"
            )
        return item

    def _drop(self, key: tuple[str, str]) -> None:
        response, size = self._found.pop(key)
        self._bytes -= size
        for item in _items(response):
            self._items.pop((key[0], item["id"]), None)


def _items(response: StoredResponse) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = response.fields.get("output", ())
    return found


def _size(turn: Mapping[str, Any]) -> int:
    """Return the size of a message and its images in bytes."""
    text = {name: value for name, value in turn.items() if name != "images"}
    return len(dump(text)) + sum(map(len, turn.get("images", ())))
