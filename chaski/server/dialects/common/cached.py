"""Cached tokens by tier, a field that all dialects share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chaski.chat.events import Done

__all__ = ["cached_by_tier"]


def cached_by_tier(answers: Iterable[Done]) -> dict[str, Any]:
    """Return `cached_tokens_by_tier`, summed over answers; {} if no token came from memory or disk."""
    total = {"cells": 0, "memory": 0, "disk": 0}
    for done in answers:
        for tier, count in done.cached_by_tier.items():
            total[tier] += count
    return {"cached_tokens_by_tier": total} if total["memory"] or total["disk"] else {}
