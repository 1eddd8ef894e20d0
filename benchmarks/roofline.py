"""The limits of this machine, and what they allow a model: `python -m benchmarks.roofline`.

Read bandwidth and multiply-adds per second, on one thread and on several. Two processors whose multiply-adds
do not add up are two threads of one core.
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
    """Bytes of all matrices: a decode step reads each once."""
    layer_products: int
    """Multiply-adds of the layers for one token."""
    head_products: int
    """Multiply-adds of the output matrix, needed where logits are."""
    history_bytes: float
    """Bytes of keys and values for a token of history."""
    product_type: str
    """The numbers that matrices are multiplied as: int8, bf16 or fp32."""
    attention_products: int
    """Multiply-adds of all layers for a token and one that it sees."""
    attention_type: str = "fp32"
    """The numbers that these are multiplied as."""


def measure(threads: int) -> list[Limits]:
    """The limits of one thread, and of all where there are more."""
    isa = Environment.read().isa
    return [measure_limits(count, isa) for count in sorted({1, threads})]


def median_limits(limits: Sequence[Limits]) -> Limits:
    """The medians of measurements with the same instructions and threads."""
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
    """Multiply-adds per second; bf16 may be computed as fp32, where that is faster. int16 is half of int8."""
    if product_type == "int16":
        return limits.int8 / 2
    if product_type == "bf16":
        return max(limits.bf16 or 0, limits.fp32)
    rate: float = getattr(limits, product_type)
    return rate


def decode_limit(limits: Limits, costs: Costs, batch: int, history: float) -> float:
    """Tokens per second of all sequences: bound by what a step reads, or by what it multiplies."""
    reading = (costs.weight_bytes + batch * history * costs.history_bytes) / limits.read_bandwidth
    products = batch * (costs.layer_products + costs.head_products)
    return batch / max(reading, products / product_rate(limits, costs.product_type))


def prefill_limit(limits: Limits, costs: Costs, history: float) -> float:
    """Tokens per second of a prompt whose tokens see so many others on average, by what it multiplies."""
    matrices = costs.layer_products / product_rate(limits, costs.product_type)
    attention = history * costs.attention_products / product_rate(limits, costs.attention_type)
    return 1 / (matrices + attention)


def scaling(limits: Iterable[Limits]) -> float | None:
    """Multiply-adds of all threads, in those of one; None if only one was measured."""
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
