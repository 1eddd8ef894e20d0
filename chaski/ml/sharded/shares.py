"""The nodes' shares of a model: by default in proportion to speed, as far as their memory allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["row_units", "usual_shares"]

# Weights may take this share of the free memory; caches and plans need the rest.
_WEIGHTS = 0.8
_MOST_UNITS = 64


def usual_shares(num_bytes: int, memory: Sequence[float], speeds: Sequence[float | None]) -> Sequence[float]:
    """Return shares of weights that take `num_bytes`, for nodes with `memory` free bytes each.

    If a node's share does not fit in its memory, the other nodes take the rest. If a speed is unknown, or
    memory is scarce on all nodes, shares are proportional to memory. Speeds are rounded to steps of a factor
    of 1.4. Otherwise the cut, which is part of the names of kept prompts, would change with every
    measurement.
    """
    room = [_WEIGHTS * each for each in memory]
    known = [speed for speed in speeds if speed]
    if len(known) < len(memory) or sum(room) < num_bytes:
        return memory
    slowest = min(known)
    steps = [2 ** (round(2 * math.log2(speed / slowest)) / 2) for speed in known]
    shares, left = [0.0] * len(memory), float(num_bytes)
    open_nodes = set(range(len(memory)))
    while True:
        total = sum(steps[node] for node in open_nodes)
        full = {node for node in open_nodes if left * steps[node] / total > room[node]}
        if not full:
            break
        for node in full:
            shares[node] = room[node]
            left -= room[node]
        open_nodes -= full
    for node in open_nodes:
        shares[node] = left * steps[node] / total
    return shares


def row_units(shares: Sequence[float]) -> Sequence[int]:
    """Return shares of rows as small integers, each at least 1, without a common divisor.

    Small integers are kept. Other shares become quarters for two nodes, eighths for up to eight, and equal
    for more nodes: heads can only be split if their number is a multiple of the sum, and most models have 4
    or 8.
    """
    if all(share == int(share) and share for share in shares) and sum(shares) <= _MOST_UNITS:
        units = list(map(int, shares))
    else:
        total = 4 if len(shares) == 2 else 8
        if len(shares) > total:
            return [1] * len(shares)
        # One unit each, and the others to the nodes that are furthest below their shares.
        units = [1] * len(shares)
        for _ in range(total - len(shares)):
            lacking = [share * total / sum(shares) - own for share, own in zip(shares, units, strict=True)]
            units[lacking.index(max(lacking))] += 1
        if max(units) - min(units) <= 1:
            return [1] * len(shares)
    divisor = math.gcd(*units)
    return [own // divisor for own in units]
