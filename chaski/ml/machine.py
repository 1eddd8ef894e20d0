"""Properties of this machine: memory, and the cores that this process may use."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from chaski.ml import limits

__all__ = [
    "available_memory",
    "cpu_info",
    "cpu_model",
    "cpu_name",
    "largest_cache",
    "memory_nodes",
    "physical_cores",
    "spare_memory",
    "total_memory",
    "usable_processors",
]

_PROCESSORS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY_INFO = Path("/proc/meminfo")
_MODEL = ("cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part", "CPU revision")

# If a quota allows a fraction of a core, one more thread gains that fraction but causes pauses. A fifth of a
# core gained three percent.
_LEAST_PART = 0.2
# The share of the machine's memory that experts leave free.
_SPARE = 0.05
# Computing takes one in this many of the threads that may still be started; others serve requests and read
# files.
_TASKS_EACH = 2
_SMALL_CACHE = 8 << 20


def physical_cores() -> int:
    """Return the number of physical cores that this process may run on; hyper-threads count once.

    The CPU quotas and thread limits of control groups also limit the number.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = len({_siblings(processor) for processor in os.sched_getaffinity(0)})
    quota, tasks = limits.cpu_quota(), limits.tasks_left()
    bounds = [cores, cores if quota == math.inf else math.ceil(quota - _LEAST_PART)]
    return max(1, min(bounds if tasks is None else [*bounds, tasks // _TASKS_EACH]))


def usable_processors() -> int:
    """Return the number of processors that this process may run on, hyper-threads included."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def largest_cache() -> int:
    """Return the bytes of a processor's largest cache, or a small default if the system reports none."""
    sizes = (path.read_text().strip() for path in _PROCESSORS.glob("cpu0/cache/index*/size"))
    found = [int(size[:-1]) << 10 for size in sizes if size[-1:] == "K" and size[:-1].isdecimal()]
    return max(found, default=_SMALL_CACHE)


def memory_nodes() -> list[int]:
    """Return the numbers of the memory nodes whose processors this process may use; empty if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    usable = os.sched_getaffinity(0)
    lists = {int(path.parent.name[4:]): path.read_text() for path in _NODES.glob("node[0-9]*/cpulist")}
    return sorted(node for node, text in lists.items() if usable & set(_numbers(text)))


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as 0-3,8-11."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def total_memory() -> int:
    """Return the bytes of memory that this process may have: the machine's memory or a lower limit."""
    bounds = (_machine_memory(), limits.memory_limit(), limits.address_space())
    return min(bound for bound in bounds if bound is not None)


def spare_memory() -> int:
    """Return the bytes that stay free when weights take all memory that is left."""
    return math.ceil(_SPARE * total_memory())


def available_memory() -> int:
    """Return the bytes that can still be allocated without swapping."""
    free, left = _free_memory(), limits.memory_left()
    return free if left is None else min(free, left)


def cpu_name() -> str:
    """Return the processor's name as the operating system reports it."""
    if name := cpu_info().get("model name"):
        return name
    if platform.system() == "Darwin":
        found = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def cpu_model() -> str:
    """Return the processor's name and the numbers that identify it.

    Virtual machines use one name for several generations, and Linux reports no name for ARM processors.
    """
    info = cpu_info()
    return ", ".join([cpu_name(), *(f"{name} {info[name]}" for name in _MODEL if name in info)])


def cpu_info() -> dict[str, str]:
    """Return the fields with which Linux describes the first processor; empty on other systems."""
    first = _CPU_INFO.read_text().split("\n\n", 1)[0] if _CPU_INFO.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _siblings(processor: int) -> str:
    path = _PROCESSORS / f"cpu{processor}/topology/thread_siblings_list"
    return path.read_text().strip() if path.exists() else str(processor)


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_memory() -> int:
    """Return the bytes that are free or can be freed; all memory if the system does not report them."""
    lines = _MEMORY_INFO.read_text().splitlines() if _MEMORY_INFO.exists() else []
    found = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return next(found, _machine_memory())
