"""A line on the experts of a model that are in several places: on a GPU, in memory, on the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaski.cli.layout import size_in_bytes

__all__ = ["experts_line"]

# The worst layer is named if its hits are fewer than those of all layers by this share of requests.
_WORTH_NAMING = 0.02


def experts_line(layers: Sequence[Mapping[str, int]]) -> str:
    """Return in words what layers found in each place and read, from the `experts` of `/api/ps`."""
    totals = {name: sum(layer[name] for layer in layers) for name in layers[0]}
    room = f"room for {totals['slots'] / totals['matrices']:.0%}"
    if not totals["requests"]:
        return f"{room}, none requested yet"
    share = _found(totals)
    worst = min((layer for layer in layers if layer["requests"]), key=_found)
    is_named = _found(worst) < share - _WORTH_NAMING
    named = f" (layer {worst['layer']}: {_found(worst):.0%})" if is_named else ""
    read = f"{size_in_bytes(totals['bytes_read'])} read"
    if not (slots := totals.get("gpu_slots", 0)):
        return f"{share:.0%} of requests in memory{named}, {room}, {read}"
    of_gpu = f"{totals['gpu_hits'] / totals['requests']:.0%} on a GPU with room for "
    of_gpu += f"{slots / totals['matrices']:.0%}"
    return f"{share:.0%} of requests in memory or on a GPU{named}, {of_gpu}, {room} in memory, {read}"


def _found(counts: Mapping[str, int]) -> float:
    """Return the share of requests that were not read from the file."""
    return (counts["hits"] + counts.get("gpu_hits", 0)) / counts["requests"]
