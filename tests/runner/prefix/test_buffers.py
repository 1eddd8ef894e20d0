"""Buffers of blocks."""

from __future__ import annotations

import gc

from chaski.runner.prefix.buffers import Buffers


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
