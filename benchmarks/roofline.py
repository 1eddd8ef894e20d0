"""Measure the limits of this machine, and derive those of a model: `python -m benchmarks.roofline`.

It measures read bandwidth and multiply-adds per second on one thread and on several. If the multiply-adds of
two processors do not add up, they are two threads of one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.limits import Limits, measure_limits
from chaski.env import Environment

__all__ = ["Costs", "Limits", "decode_limit", "measure", "median_limits", "prefill_limit", "scaling"]


@dataclass(frozen=True, slots=True)
class Costs:
    """The least cost of a model."""

    weight_bytes: int
    """Bytes of all matrices; a decode step reads each once."""
    layer_products: int
    """Multiply-adds of the layers for one token."""
    head_products: int
    """Multiply-adds of the output matrix, for tokens with logits."""
    history_bytes: float
    """Bytes of keys and values for a token of history."""
    product_type: str
    """The number type of matrix products: int8, bf16 or fp32."""
    attention_products: int
    """Multiply-adds of attention in all layers for a token and one token that it sees."""
    attention_type: str = "fp32"
    """The number type of these products."""


def measure(threads: int) -> list[Limits]:
    """Measure the limits of one thread, and of all threads if there are several."""
    isa = Environment.read().isa
    return [measure_limits(count, isa) for count in sorted({1, threads})]


def median_limits(limits: Sequence[Limits]) -> Limits:
    """Return the medians of measurements with the same instruction set and threads."""
    first = limits[0]
    return Limits(
        first.isa,
        first.threads,
        median(one.read_bandwidth for one in limits),
        median(one.int8 for one in limits),
        median(one.bf16 or 0 for one in limits) or None,
        median(one.fp32 for one in limits),
    )


def product_rate(limits: Limits, product_type: str) -> float:
    """Return multiply-adds per second; bf16 may run as fp32, and int16 has half the rate of int8."""
    if product_type == "int16":
        return limits.int8 / 2
    if product_type == "bf16":
        return max(limits.bf16 or 0, limits.fp32)
    rate: float = getattr(limits, product_type)
    return rate


def decode_limit(limits: Limits, costs: Costs, batch: int, history: float) -> float:
    """Return the most tokens per second of all sequences, by the reads or multiply-adds of a step."""
    reading = (costs.weight_bytes + batch * history * costs.history_bytes) / limits.read_bandwidth
    products = batch * (costs.layer_products + costs.head_products)
    return batch / max(reading, products / product_rate(limits, costs.product_type))


def prefill_limit(limits: Limits, costs: Costs, history: float) -> float:
    """Return the most prompt tokens per second by multiply-adds; a token sees this many others on average."""
    matrices = costs.layer_products / product_rate(limits, costs.product_type)
    attention = history * costs.attention_products / product_rate(limits, costs.attention_type)
    return 1 / (matrices + attention)


def scaling(limits: Iterable[Limits]) -> float | None:
    """Return the multiply-adds of all threads relative to one; None if only one was measured."""
    by_threads = {one.threads: one.int8 for one in limits}
    return by_threads[max(by_threads)] / by_threads[1] if len(by_threads) > 1 and 1 in by_threads else None


def main() -> None:
    """Print the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    found = measure(parser.parse_args().threads)
    print(f"{found[0].isa:10}{'read, GB/s':>12}{'int8':>8}{'bf16':>8}{'fp32':>8}  10^9 a second")
    for one in found:
        bf16 = "none" if one.bf16 is None else f"{one.bf16 / 1e9:.0f}"
        threads = f"{one.threads} thread" + "s" * (one.threads > 1)
        print(
            f"{threads:10}{one.read_bandwidth / 1e9:12.1f}{one.int8 / 1e9:8.0f}{bf16:>8}{one.fp32 / 1e9:8.0f}"
        )
    factor = scaling(found)
    if factor is not None:
        print(f"{found[-1].threads} threads multiply {factor:.2f} times as fast as one.")


if __name__ == "__main__":
    main()
