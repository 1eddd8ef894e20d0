"""Measure the peak rates of this machine, for comparison with measured speeds."""

from __future__ import annotations

from msgspec import Struct

from chaski import _native

__all__ = ["Limits", "measure_limits"]

# Far more than any cache can hold.
_BYTES = 512 << 20


class Limits(Struct, frozen=True):
    """Peak rates of `threads` threads together, with the instruction set `isa`."""

    isa: str
    threads: int
    read_bandwidth: float
    """Bytes per second, read once from memory in huge pages."""
    int8: float
    """Multiply-adds per second of bytes, as in the products of quantized matrices."""
    bf16: float | None
    """Multiply-adds per second of bfloat16 pairs; None if the processor lacks the instruction."""
    fp32: float


def measure_limits(threads: int, isa: str = "auto") -> Limits:
    """Measure for about a second; other load on the machine lowers the result.

    Raises:
        ValueError: if this build or this machine lacks the instruction set.
    """
    pool = _native.ThreadPool(threads)
    name = _native.isa_names()[-1] if isa == "auto" else isa
    int8 = _native.multiply_add_rate(pool, name, "int8")
    fp32 = _native.multiply_add_rate(pool, name, "fp32")
    assert int8 is not None
    assert fp32 is not None
    bf16 = _native.multiply_add_rate(pool, name, "bf16")
    return Limits(name, threads, _native.read_bandwidth(pool, name, _BYTES), int8, bf16, fp32)
