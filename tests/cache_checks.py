"""Checks of the caches and slots of an engine that hold between any two steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaski.kvcache import CausalCache
from chaski.kvcache.recurrent import RecurrentCache
from chaski.runner.engine.engine import Engine

__all__ = ["assert_whole", "caches"]


def caches(engine: Engine) -> list[Any]:
    """Return the caches of each kind of layer."""
    return list(getattr(engine._cache, "caches", [engine._cache]))


def assert_whole(engine: Engine) -> None:
    """Check that slots and caches agree, that owners list their cells, and that free cells have none."""
    for slot in engine._prefix_cache.slots:
        assert slot.is_free or any(sequence.slot is slot for sequence in engine._sequences.running), (
            "busy for ever"
        )
        assert engine._cache.length(slot.index) == len(slot.tokens), slot
    for cache in caches(engine):
        if isinstance(cache, CausalCache):
            _assert_counted(cache)
        if isinstance(cache, RecurrentCache):
            holders = [0] * len(cache._rows._holders)
            for track in cache._tracks:
                for state in track.states():
                    holders[state.row] += 1
            assert holders[1:] == cache._rows._holders[1:]
            assert sorted(cache._rows._free) == [row for row in range(1, len(holders)) if not holders[row]]


def _assert_counted(cache: CausalCache) -> None:
    table = cache._table
    owners = np.zeros(table.cells.count, np.int32)
    for sequence, (first, length) in enumerate(zip(table.firsts, table.lengths, strict=True)):
        assert 0 <= first <= length
        stored = table.stored(sequence)
        assert len(set(stored.tolist())) == len(stored)
        owners[stored] += 1
    assert (owners == table.cells._owners).all()
    assert table.cells.num_free == np.count_nonzero(owners == 0)
