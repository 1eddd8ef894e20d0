"""The measured limits of the machine have the right order of magnitude."""

from __future__ import annotations

import pytest

from benchmarks.limits import measure_limits
from chaski import _native


@pytest.mark.long
def test_limits_of_one_thread() -> None:
    several = [measure_limits(1) for _ in range(3)]
    assert {limits.isa for limits in several} == {_native.isa_names()[-1]}
    # The best of each, since other load on the core may disturb a measurement.
    fp32 = max(limits.fp32 for limits in several)
    assert max(limits.int8 for limits in several) > fp32 > 1e8
    # Some processors take as long for two half-wide numbers as for two full ones.
    assert several[0].bf16 is None or max(limits.bf16 or 0 for limits in several) > fp32 / 4
    # No memory is as slow as a disk, and none is as fast as a read of thousands of bytes per cycle.
    assert 1e8 < several[0].read_bandwidth < 1e13


def test_wider_instructions_do_more() -> None:
    pool = _native.ThreadPool(1)
    rates = [_native.multiply_add_rate(pool, isa, "int8") for isa in _native.isa_names()]
    assert None not in rates
    assert rates[0] == min(rates, key=lambda rate: rate or 0)


def test_what_there_is_not() -> None:
    pool = _native.ThreadPool(1)
    with pytest.raises(ValueError, match="int8, bf16 and fp32"):
        _native.multiply_add_rate(pool, "portable", "int4")
    with pytest.raises(ValueError, match="available:"):
        measure_limits(1, "sse9")
    with pytest.raises(ValueError, match="1 MiB"):
        _native.read_bandwidth(pool, "portable", 4096)
    assert _native.multiply_add_rate(pool, "portable", "bf16") is None
