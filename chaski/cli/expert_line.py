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
    room = f"room for {totals['slots'] / totals['matrices']:.0%}"
    if not totals["requests"]:
        return f"{room}, none requested yet"
    share = _hits(totals)
    worst = min((layer for layer in layers if layer["requests"]), key=_hits)
    is_named = _hits(worst) < share - _WORTH_NAMING
    named = f" (layer {worst['layer']}: {_hits(worst):.0%})" if is_named else ""
    return f"{share:.0%} of requests in memory{named}, {room}, {size_in_bytes(totals['bytes_read'])} read"


def _hits(counts: Mapping[str, int]) -> float:
    return counts["hits"] / counts["requests"]
