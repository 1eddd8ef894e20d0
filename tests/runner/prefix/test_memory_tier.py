"""The tier of host memory."""

from __future__ import annotations

import gc

import numpy as np

from chaski.runner.prefix.blocks import Block, Part
from chaski.runner.prefix.buffers import Buffers
from chaski.runner.prefix.memory_tier import MemoryTier


def block(name: str, before: str, size: int = 10) -> Block:
    part = Part(0, 1, np.zeros(size, np.uint8))
    return Block(name.encode(), before.encode(), 0, (1,), ((part,),))


def names(tier: MemoryTier, *wanted: str) -> list[str]:
    return [name for name in wanted if tier.get(name.encode()) is not None]


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    tier = MemoryTier(30)
    for name in "abc":
        tier.put(block(name, "root"))
    tier.touch([b"a"])
    tier.put(block("d", "root"))
    assert names(tier, *"abcd") == ["a", "c", "d"]
    assert tier.num_bytes == 30


def test_a_block_outlives_those_behind_it() -> None:
    tier = MemoryTier(30)
    tier.put(block("a", "root"))
    tier.put(block("b", "a"))
    tier.touch([b"a"])
    tier.put(block("c", "b"))
    tier.touch([b"b", b"a"])
    tier.put(block("x", "root"))
    assert names(tier, *"abcx") == ["a", "b", "x"]
    tier.put(block("y", "root"))
    assert names(tier, *"abcxy") == ["a", "x", "y"]


def test_what_comes_behind_a_name_is_known() -> None:
    tier = MemoryTier(100)
    tier.put(block("b", "a"))
    tier.put(block("c", "a"))
    assert [each.name for each in tier.behind(b"a")] == [b"b", b"c"]
    tier.drop(b"b")
    assert [each.name for each in tier.behind(b"a")] == [b"c"]
    tier.clear()
    assert not tier.behind(b"a")
    assert tier.num_bytes == len(tier) == 0


def test_a_block_that_is_too_large_pushes_nothing_out() -> None:
    tier = MemoryTier(30)
    tier.put(block("a", "root"))
    tier.put(block("b", "root", 31))
    assert names(tier, *"ab") == ["a"]


def test_memory_is_used_again_and_is_clean() -> None:
    buffers = Buffers()
    first = buffers.take(0, 64, is_overwritten=True)
    first[:] = 7
    place = first.ctypes.data
    del first
    gc.collect()
    other = buffers.take(1, 64, is_overwritten=True)
    assert not other.any()
    again = buffers.take(0, 64, is_overwritten=False)
    assert again.ctypes.data == place
    assert not again.any()
