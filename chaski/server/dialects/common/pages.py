"""Pagination of lists, as in OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chaski.errors import OptionError

__all__ = ["page_of"]

_LIMIT, _MOST = 20, 100


def page_of(
    ids: Sequence[str], load: Callable[[str], Mapping[str, Any] | None], query: Mapping[str, str]
) -> dict[str, Any]:
    """Return a page of a list: up to `limit` items after the item `after`. Raises OptionError.

    ids: the ids of all items, the oldest first
    load: function that returns the item of an id, or None if it is gone; called for items of the page only
    query: `order`, `limit` and `after`; the newest item comes first, unless `order` is asc
    """
    order, limit = query.get("order", "desc"), query.get("limit", str(_LIMIT))
    if order not in ("asc", "desc"):
        raise OptionError(f"order {order!r:.40} must be asc or desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= _MOST):
        raise OptionError(f"limit must be 1 to {_MOST}")
    ordered = list(ids) if order == "asc" else list(reversed(ids))
    after = query.get("after")
    if after is not None and after not in ordered:
        raise OptionError(f"after is {after!r:.80}, which is not in the list")
    begin = 0 if after is None else ordered.index(after) + 1
    end = begin + int(limit)
    page = [item for item in map(load, ordered[begin:end]) if item is not None]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": end < len(ordered),
    }
