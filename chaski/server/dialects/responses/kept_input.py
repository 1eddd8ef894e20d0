"""The input items of a request, in the form in which the Responses API lists them later."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from chaski.server.fields.reader import Fields

__all__ = ["input_items"]


def input_items(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the items, each with an id. A text becomes a user's message. `body` must be a valid request."""
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(item.data) for item in Fields({"input": given}).objects("input")]


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
