"""Properties of this machine: cores that this process may use, and memory."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

__all__ = ["available_memory", "cpu_name", "physical_cores", "total_memory", "usable_processors"]

_CGROUP = Path("/sys/fs/cgroup")


def physical_cores() -> int:
    """Physical cores among the processors that this process may run on; hyper-threads count once.

    A container's CPU quota (cgroup version 2) bounds the number as well.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    cores = {_siblings(cpu) for cpu in usable}
    return max(1, min(len(cores), _quota(len(usable))))


def usable_processors() -> int:
    """Processors that this process may run on, hyper-threads included."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    if platform.system() == "Darwin":
        found = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text().strip() if path.exists() else str(cpu)


def _quota(cpus: int) -> int:
    path = _CGROUP / "cpu.max"
    if not path.exists():
        return cpus
    quota, period = path.read_text().split()
    return cpus if quota == "max" else max(1, int(quota) // int(period))


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
