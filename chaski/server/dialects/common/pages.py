"""Pages of lists, as OpenAI's API cuts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import OptionError

__all__ = ["page_of"]

_LIMIT, _MOST = 20, 100


def page_of(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list: the last item first, unless `order` is asc, `limit` of them behind `after`.

    Raises OptionError.
    """
    order, limit = query.get("order", "desc"), query.get("limit", str(_LIMIT))
    if order not in ("asc", "desc"):
        raise OptionError(f"order {order!r:.40} must be asc or desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= _MOST):
        raise OptionError(f"limit must be 1 to {_MOST}")
    ordered = list(items) if order == "asc" else list(reversed(items))
    ids = [item["id"] for item in ordered]
    after = query.get("after")
    if after is not None and after not in ids:
        raise OptionError(f"after: there is no {after!r:.80}")
    begin = 0 if after is None else ids.index(after) + 1
    page = ordered[begin : begin + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(ordered),
    }
