"""Large memory interleaved over memory nodes, as far as a machine with one node allows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski import _native

MAPS = Path("/proc/self/numa_maps")
MEGABYTE = 1 << 20


@pytest.fixture
def spread() -> Iterator[None]:
    _native.spread_memory([0])
    yield
    _native.spread_memory([])


def num_spread() -> int:
    """Return the number of this process's mappings that are interleaved on node 0."""
    return len(re.findall(r"^\S+ interleave:0\b", MAPS.read_text(), re.MULTILINE))


@pytest.mark.skipif(not MAPS.exists(), reason="the system knows no memory nodes")
@pytest.mark.usefixtures("spread")
def test_large_memory_is_spread() -> None:
    before = num_spread()
    large = _native.Weights(8 * MEGABYTE)
    if num_spread() == before:
        pytest.skip("the system refuses policies of memory, as containers may")
    small = _native.Weights(MEGABYTE)
    assert num_spread() == before + 1
    _native.spread_memory([])
    other = _native.Weights(8 * MEGABYTE)
    assert num_spread() == before + 1
    del large, small, other
    assert num_spread() == before


@pytest.mark.skipif(not MAPS.exists(), reason="the system knows no memory nodes")
@pytest.mark.parametrize("nodes", [[-1, 1 << 20], [900]])
@pytest.mark.usefixtures("spread")
def test_nodes_that_there_are_not_change_nothing(nodes: list[int]) -> None:
    _native.spread_memory(nodes)
    before = MAPS.read_text().count("interleave")
    memory = _native.Weights(8 * MEGABYTE)
    assert MAPS.read_text().count("interleave") == before
    del memory
