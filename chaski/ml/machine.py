"""Properties of this machine: cores that this process may use, and memory."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = [
    "available_memory",
    "cpu_info",
    "cpu_model",
    "cpu_name",
    "largest_cache",
    "memory_nodes",
    "physical_cores",
    "total_memory",
    "usable_processors",
]

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_PROCESSORS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_CPU_INFO = Path("/proc/cpuinfo")
_MODEL = ("cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part", "CPU revision")

# Where a quota allows a part of a core, one more thread gains that part, at the price of pauses. A fifth of a
# core gained three percent.
_LEAST_PART = 0.2
_SMALL_CACHE = 8 << 20


def physical_cores() -> int:
    """Physical cores among the processors that this process may run on; hyper-threads count once.

    CPU quotas of its control groups (version 1 or 2) bound the number as well.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = len({_siblings(processor) for processor in os.sched_getaffinity(0)})
    quota = min((_quota(group) for group in _cpu_groups()), default=math.inf)
    return max(1, min(cores, cores if quota == math.inf else math.ceil(quota - _LEAST_PART)))


def usable_processors() -> int:
    """Processors that this process may run on, hyper-threads included."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def largest_cache() -> int:
    """Return the bytes of the largest cache of a processor; those of a small one where nobody tells."""
    sizes = (path.read_text().strip() for path in _PROCESSORS.glob("cpu0/cache/index*/size"))
    found = [int(size[:-1]) << 10 for size in sizes if size[-1:] == "K" and size[:-1].isdecimal()]
    return max(found, default=_SMALL_CACHE)


def memory_nodes() -> list[int]:
    """Return the numbers of the memory nodes whose processors this process may use; none if unknown."""
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
    """Bytes of memory in this machine, or in this container."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _cgroup_number("memory.max"))


def available_memory() -> int:
    """Bytes that can still be allocated without swapping."""
    free = _meminfo("MemAvailable")
    used = _cgroup_number("memory.current", missing=0) - _cached_files()
    return min(free, _cgroup_number("memory.max") - used)


def cpu_name() -> str:
    """The processor's name as the operating system gives it."""
    if name := cpu_info().get("model name"):
        return name
    if platform.system() == "Darwin":
        found = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def cpu_model() -> str:
    """The processor's name, and the numbers that tell it apart.

    Virtual machines give several generations one name, and Linux gives ARM processors none.
    """
    info = cpu_info()
    return ", ".join([cpu_name(), *(f"{name} {info[name]}" for name in _MODEL if name in info)])


def cpu_info() -> dict[str, str]:
    """Return the fields by which Linux describes the first processor; none on another system."""
    first = _CPU_INFO.read_text().split("\n\n", 1)[0] if _CPU_INFO.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _siblings(processor: int) -> str:
    path = _PROCESSORS / f"cpu{processor}/topology/thread_siblings_list"
    return path.read_text().strip() if path.exists() else str(processor)


def _cpu_groups() -> Iterator[Path]:
    """Yield the folders of the control groups that may have a CPU quota: this process's own and all above."""
    lines = _OWN_GROUPS.read_text().splitlines() if _OWN_GROUPS.exists() else ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = _CGROUP / controllers
        # In a container the path may be that of the host, and the mount the container's own group.
        own = mount / path.lstrip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(mount))


def _quota(group: Path) -> float:
    """Return the cores that the members of a group may keep busy; infinite without a quota."""
    limit = group / "cpu.max"
    if limit.exists():
        quota, period = limit.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    limit = group / "cpu.cfs_quota_us"
    if limit.exists() and (microseconds := int(limit.read_text())) > 0:
        return microseconds / int((group / "cpu.cfs_period_us").read_text())
    return math.inf


def _cgroup_number(name: str, missing: int = 1 << 62) -> int:
    path = _CGROUP / name
    text = path.read_text().strip() if path.exists() else "max"
    return missing if text == "max" else int(text)


def _cached_files() -> int:
    """Bytes of files that this container has in memory; the system drops them where it needs room."""
    path = _CGROUP / "memory.stat"
    lines = path.read_text().splitlines() if path.exists() else []
    counts = dict(line.split() for line in lines)
    return int(counts.get("active_file", 0)) + int(counts.get("inactive_file", 0))


def _meminfo(key: str) -> int:
    path = Path("/proc/meminfo")
    if not path.exists():
        return total_memory()
    for line in path.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return total_memory()
