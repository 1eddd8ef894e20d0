"""Limits that the system sets for this process: control groups of both versions, and resource limits.

The process must obey the limits of its own control group and of every group above it, so the smallest limit
applies. In a container the groups above its own are not visible, but version 1 reports their memory limit.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

__all__ = [
    "address_space",
    "address_space_note",
    "addresses_left",
    "cpu_quota",
    "groups",
    "memory_left",
    "memory_limit",
    "open_files",
    "tasks_left",
]

_PROC = Path("/proc")
# Version 1 reports the largest multiple of a page if there is no limit.
_NO_LIMIT = 1 << 62
_STATISTIC = re.compile(r"^(hierarchical_memory_limit|(?:total_)?(?:in)?active_file) ([0-9]+)$", re.MULTILINE)
_ESCAPED = re.compile(r"\\([0-7]{3})")


class _Mount(Struct, frozen=True):
    """A mounted hierarchy: the group `root` is visible at `point`. Version 2 has no `controllers`."""

    root: PurePosixPath
    point: Path
    controllers: frozenset[str]


def memory_limit() -> int | None:
    """Return the bytes of memory that the control groups of this process may have; None without a limit."""
    return min((limit for _, limit in _memory_groups()), default=None)


def memory_left() -> int | None:
    """Return the bytes that this process may still allocate in its control groups; None without a limit.

    Cached files of a group count as free, because the system drops them when memory is needed.
    """
    left = (limit - max(0, _memory_used(group) - _cached_files(group)) for group, limit in _memory_groups())
    return min(left, default=None)


def cpu_quota() -> float:
    """Return the number of processors that this process may keep busy; infinite without a quota."""
    return min((_quota(group) for group in groups("cpu")), default=math.inf)


def tasks_left() -> int | None:
    """Return the number of threads and processes that may still be started; None without a limit."""
    left = []
    for group in groups("pids"):
        limit = _number(group / "pids.max")
        if limit is not None:
            left.append(max(0, limit - (_number(group / "pids.current") or 0)))
    return min(left, default=None)


def open_files() -> int | None:
    """Return the number of files and connections that this process may have open; None without a limit."""
    return _resource_limit("RLIMIT_NOFILE")


def address_space() -> int | None:
    """Return the bytes of addresses that this process may have, mapped files included; None without a limit.

    The result is the smaller of `ulimit -v` and `ulimit -d`, because chaski reserves all its memory as data.
    """
    return min((limit for _, limit in _address_limits()), default=None)


def addresses_left() -> int | None:
    """Return the bytes of addresses that this process may still reserve; None without a limit."""
    limit = address_space()
    pages = _text(_PROC / "self/statm").partition(" ")[0]
    if limit is None or not pages.isdecimal():
        return limit
    return max(0, limit - int(pages) * os.sysconf("SC_PAGE_SIZE"))


def address_space_note() -> str:
    """Return the end of an error message about memory, which names `ulimit -v` and `ulimit -d` if set."""
    named = " and ".join(f"{name} to {limit / 1e9:.2f} GB" for name, limit in _address_limits())
    return f"; this process is limited by {named}" if named else ""


def _address_limits() -> Iterator[tuple[str, int]]:
    for name, command in (("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")):
        limit = _resource_limit(name)
        if limit is not None:
            yield command, limit


def _memory_groups() -> Iterator[tuple[Path, int]]:
    """Yield the groups that limit memory, and the limit of each in bytes."""
    for group in groups("memory"):
        # The system slows down processes above `memory.high` until they release memory.
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        limits = [limit for name in names if (limit := _number(group / name)) is not None]
        limits += [_statistics(group).get("hierarchical_memory_limit", _NO_LIMIT)]
        if min(limits) < _NO_LIMIT:
            yield group, min(limits)


def _memory_used(group: Path) -> int:
    used = _number(group / "memory.current")
    return used if used is not None else _number(group / "memory.usage_in_bytes") or 0


def _cached_files(group: Path) -> int:
    """Return the bytes of cached files of a group and of all groups below it."""
    counts = _statistics(group)
    # Version 1 reports sums that include the groups below under separate names.
    prefix = "total_" if "total_inactive_file" in counts else ""
    return sum(counts.get(f"{prefix}{name}", 0) for name in ("active_file", "inactive_file"))


def _quota(group: Path) -> float:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else math.inf


def _statistics(group: Path) -> dict[str, int]:
    """Return the numbers of a group's statistics that are used here."""
    return {name: int(value) for name, value in _STATISTIC.findall(_text(group / "memory.stat"))}


def groups(controller: str) -> tuple[Path, ...]:
    """Return the folders of this process's groups that may limit a resource, its own group first."""
    return _groups(controller, _text(_PROC / "self/cgroup"), _text(_PROC / "self/mountinfo"))


@lru_cache(maxsize=8)
def _groups(controller: str, own_groups: str, mounted: str) -> tuple[Path, ...]:
    """Return the folders, by what the system says of this process's groups and of what is mounted."""
    paths = dict(_own_paths(own_groups))
    found: list[Path] = []
    for mount in _mounts(mounted):
        if mount.controllers and controller not in mount.controllers:
            continue
        own = paths.get(controller if mount.controllers else "", PurePosixPath("/"))
        # A path outside the mount belongs to the host; the mount then shows the container's own group.
        is_inside = own.is_relative_to(mount.root) and ".." not in own.parts
        folder = mount.point / own.relative_to(mount.root) if is_inside else mount.point
        found += [each for each in (folder, *folder.parents) if each.is_relative_to(mount.point)]
    return tuple(found)


def _own_paths(text: str) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the path of this process's group for each controller; version 2 has an empty controller name."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, PurePosixPath(path)


def _mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        mounted, _, source = line.partition(" - ")
        root, point = (_unescaped(part) for part in mounted.split()[3:5])
        kind, _, *options = source.split()
        if kind == "cgroup2":
            yield _Mount(PurePosixPath(root), Path(point), frozenset())
        elif kind == "cgroup":
            yield _Mount(PurePosixPath(root), Path(point), frozenset(options[-1].split(",")))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file is missing or contains no limit."""
    text = _text(path)
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def _text(path: Path) -> str:
    """Return the content of a system file; empty if it cannot be read."""
    # Several of these files are read for every model, so they are opened without a buffer and a decoder.
    with suppress(OSError, UnicodeDecodeError), path.open("rb", buffering=0) as file:
        return file.read().decode().strip()
    return ""


def _resource_limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:  # a system without such limits
        return None
    limit, _ = resource.getrlimit(getattr(resource, name))
    return None if limit == resource.RLIM_INFINITY else limit
