"""Receipts in replies of all dialects."""

from __future__ import annotations

from typing import Any

from chaski.server.answering.events import Finish

__all__ = ["receipt_fields"]


def receipt_fields(finish: Finish) -> dict[str, Any]:
    """Return the field with the receipt of an answer; nothing if it has none."""
    receipt = finish.done.receipt
    return {} if receipt is None else {"receipt": receipt.fields()}
