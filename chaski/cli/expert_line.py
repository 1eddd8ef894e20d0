"""A line on the experts of a model that do not all fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaski.cli.layout import size_in_bytes

__all__ = ["experts_line"]

# The worst layer is named if its hits are fewer than those of all layers by this share of requests.
_WORTH_NAMING = 0.02


def experts_line(layers: Sequence[Mapping[str, int]]) -> str:
    """Return in words what layers found in memory and read, from the `experts` of `/api/ps`."""
    totals = {name: sum(layer[name] for layer in layers) for name in layers[0]}
    held = f"{totals['slots'] / totals['matrices']:.0%} of them fit into memory"
    if not totals["requests"]:
        return f"{held}; no token has chosen any yet"
    share = _hits(totals)
    worst = min((layer for layer in layers if layer["requests"]), key=_hits)
    named = f", {_hits(worst):.0%} in layer {worst['layer']}" if _hits(worst) < share - _WORTH_NAMING else ""
    read = size_in_bytes(totals["bytes_read"])
    return f"{share:.0%} of requests found in memory{named}; {held}; {read} read from the disk"


def _hits(counts: Mapping[str, int]) -> float:
    return counts["hits"] / counts["requests"]
