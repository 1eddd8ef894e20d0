"""The items of a request's input, as the Responses API lists them later."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import OptionError
from chaski.server.fields.reader import Fields

__all__ = ["input_items", "page_of_items"]

_LIMIT, _MOST = 20, 100


def input_items(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The items, each with an id; a text is the message of a user. For a body that was read before."""
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(item.data) for item in Fields({"input": given}).objects("input")]


def page_of_items(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
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
        raise OptionError(f"after: the response has no item {after!r:.80}")
    begin = 0 if after is None else ids.index(after) + 1
    page = ordered[begin : begin + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(ordered),
    }


def _item(item: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = item.get("type", "message")
    named: dict[str, Any] = {
        "id": item.get("id") or f"{'msg' if kind == 'message' else 'item'}_{secrets.token_hex(24)}"
    }
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
        named["content"] = [{"type": part, "text": content, **more}]
    usual = {"status": "completed"} if kind == "message" else {}
    return {"type": kind, **usual, **item, **named}
