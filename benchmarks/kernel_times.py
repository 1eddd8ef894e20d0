"""The time of each kernel of a plan, alone on its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from chaski.ml.cuda.device import KernelLaunch
from chaski.ml.cuda.plan import CUDAPlan

__all__ = ["time_kernels"]


def time_kernels(plan: CUDAPlan, repeat: int = 20) -> Iterator[tuple[str, float]]:
    """Run each kernel of a plan's last run alone, many times in a row -> name with sizes, and seconds.

    The results and stores of the kernels are lost.
    """
    gpu, known = plan._gpu, dict[tuple[str, Any], float]()
    for step in plan.steps:
        kernel = step.choose(plan.newest_sizes)
        if kernel is None:
            continue
        first = kernel.program.defines[0][1] if kernel.program.defines else ""
        name = f"{kernel.name} {first} {kernel.grid[0]} x {kernel.threads}"
        if (name, kernel) not in known:
            launch = KernelLaunch(
                gpu.kernel(kernel.program, kernel.name),
                kernel.grid,
                kernel.threads,
                kernel.shared,
                plan._argument(step),
            )
            recorded = gpu.record([launch] * repeat)
            gpu.run(recorded)
            gpu.wait()
            began = perf_counter()
            gpu.run(recorded)
            gpu.wait()
            known[name, kernel] = (perf_counter() - began) / repeat
        yield name, known[name, kernel]
