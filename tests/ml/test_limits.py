"""Limits of control groups and processes, from simulated trees of both versions."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from chaski.ml import limits, machine

GB = 10**9


class Tree:
    """A simulated /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounts: list[str] = []

    def write(self, path: str, text: object) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(f"{text}\n")

    def mount(self, point: str, controllers: str = "", root: str = "/") -> None:
        """Mount a hierarchy: version 1 with controllers, version 2 without."""
        place = str(self.root / point).replace(" ", r"\040")
        kind = f"cgroup cgroup rw,{controllers}" if controllers else "cgroup2 cgroup rw,nsdelegate"
        self.mounts.append(f"{len(self.mounts)} 0 0:1 {root} {place} rw,nosuid shared:9 - {kind}")
        self.write("proc/self/mountinfo", "1 0 0:2 / / rw - ext4 /dev/sda rw\n" + "\n".join(self.mounts))

    def belongs(self, *lines: str) -> None:
        self.write("proc/self/cgroup", "\n".join(lines))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(limits, "_PROC", tmp_path / "proc")
    return Tree(tmp_path)


def test_nothing_is_limited_where_nothing_is_reported(tree: Tree) -> None:
    assert limits.memory_limit() is limits.memory_left() is limits.tasks_left() is None
    assert limits.cpu_quota() == math.inf
    tree.mount("unified")
    tree.belongs("0::/user.slice")
    tree.write("unified/user.slice/memory.max", "max")
    tree.write("unified/user.slice/pids.max", "max")
    tree.write("unified/user.slice/cpu.max", "max 100000")
    assert limits.memory_limit() is limits.memory_left() is limits.tasks_left() is None
    assert limits.cpu_quota() == math.inf


@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/chaski.service"])
@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
def test_a_unit_of_version_2_is_limited_by_every_group_above_it(tree: Tree, limited: str, name: str) -> None:
    tree.mount("unified")
    tree.belongs("0::/system.slice/chaski.service")
    for group in ("", "system.slice", "system.slice/chaski.service"):
        tree.write(f"unified/{group}/memory.max", "max" if group != "system.slice" else 9 * GB)
        tree.write(f"unified/{group}/memory.current", 2 * GB)
    tree.write(f"unified/{limited}/{name}", 3 * GB)
    tree.write(f"unified/{limited}/memory.stat", f"anon {GB}\ninactive_file {GB // 2}\nactive_file 7")
    assert limits.memory_limit() == 3 * GB
    assert limits.memory_left() == 3 * GB - (2 * GB - GB // 2 - 7)


def test_the_least_memory_left_may_be_that_of_a_larger_group(tree: Tree) -> None:
    tree.mount("unified")
    tree.belongs("0::/all/own")
    for group, limit, used in (("all", 8, 7), ("all/own", 4, 1)):
        tree.write(f"unified/{group}/memory.max", limit * GB)
        tree.write(f"unified/{group}/memory.current", used * GB)
    assert limits.memory_limit() == 4 * GB
    assert limits.memory_left() == GB


def test_version_1(tree: Tree) -> None:
    tree.mount("cgroup/memory", "memory")
    tree.mount("cgroup/cpu,cpuacct", "cpu,cpuacct")
    tree.mount("cgroup/pids", "pids")
    tree.mount("cgroup/unified")  # both versions at once, as in older systemd
    tree.belongs("9:memory:/jobs/a", "4:cpu,cpuacct:/jobs", "3:pids:/jobs/b", "1:name=systemd:/x", "0::/y")
    tree.write("cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    tree.write("cgroup/memory/jobs/memory.limit_in_bytes", 5 * GB)
    tree.write("cgroup/memory/jobs/memory.usage_in_bytes", GB)
    tree.write("cgroup/memory/jobs/a/memory.limit_in_bytes", 9223372036854771712)
    tree.write("cgroup/memory/jobs/a/memory.usage_in_bytes", GB)
    tree.write("cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", 150000)
    tree.write("cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", 100000)
    tree.write("cgroup/pids/jobs/pids.max", 100)
    tree.write("cgroup/pids/jobs/pids.current", 40)
    assert limits.memory_limit() == 5 * GB
    assert limits.memory_left() == 4 * GB
    assert limits.cpu_quota() == 1.5
    assert limits.tasks_left() == 60
    tree.write("cgroup/memory/jobs/memory.stat", f"inactive_file 1\ntotal_inactive_file {GB}")
    assert limits.memory_left() == 5 * GB


def test_a_container_of_version_1_sees_the_limit_of_groups_that_it_does_not_see(tree: Tree) -> None:
    tree.mount("cgroup/memory", "memory", root="/docker/1a2b")
    tree.belongs("9:memory:/docker/1a2b")
    tree.write("cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    tree.write("cgroup/memory/memory.usage_in_bytes", GB)
    tree.write("cgroup/memory/memory.stat", f"hierarchical_memory_limit {3 * GB}")
    assert limits.memory_limit() == 3 * GB
    assert limits.memory_left() == 2 * GB


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/docker/1a2b", "/docker/1a2b"),  # the mount is the container's group, the path is the host's
        ("/", "/"),  # a separate namespace
        ("/", "/../../other"),  # moved out of its namespace
        ("/kubepods/pod1", "/kubepods/pod2"),  # a mount of another group, the only readable one
    ],
)
def test_containers(tree: Tree, root: str, path: str) -> None:
    tree.mount("cgroup", root=root)
    tree.belongs(f"0::{path}")
    tree.write("cgroup/memory.max", GB)
    tree.write("cgroup/memory.current", GB // 4)
    assert limits.memory_limit() == GB
    assert limits.memory_left() == GB - GB // 4


def test_folders_with_blanks_and_groups_of_a_mounted_part(tree: Tree) -> None:
    tree.mount("my groups", root="/machine")
    tree.belongs("0::/machine/one/two")
    tree.write("my groups/one/memory.max", GB)
    assert limits.memory_limit() == GB


def test_files_that_hold_no_numbers_limit_nothing(tree: Tree) -> None:
    tree.mount("unified")
    tree.belongs("0::/own")
    for name in ("memory.max", "memory.stat", "cpu.max", "pids.max"):
        tree.write(f"unified/own/{name}", "what is this")
    (tree.root / "unified/own/memory.high").mkdir()
    assert limits.memory_limit() is limits.tasks_left() is None
    assert limits.cpu_quota() == math.inf


def test_threads_leave_room_for_others(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(machine, "_siblings", str)
    tree.mount("unified")
    tree.belongs("0::/own")
    assert machine.physical_cores() == 64
    tree.write("unified/own/pids.max", 40)
    tree.write("unified/own/pids.current", 20)
    assert machine.physical_cores() == 10


def test_memory_is_that_of_the_limit(tree: Tree) -> None:
    tree.mount("unified")
    tree.belongs("0::/own")
    tree.write("unified/own/memory.max", 900_000)
    tree.write("unified/own/memory.current", 850_000)
    assert machine.total_memory() == 900_000
    assert machine.available_memory() == 50_000


@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process(name: str) -> None:
    limit = 3 << 30
    code = (
        f"import resource; resource.setrlimit(resource.{name}, ({limit}, {limit}));"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99));"
        "from chaski.ml import limits, machine;"
        "from chaski.server.settings import Settings;"
        "print(limits.address_space(), machine.total_memory(), limits.open_files());"
        "print(Settings(address=None).max_connections)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    space, total, files, connections = map(int, done.stdout.split())
    assert (space, files, connections) == (limit, 99, 50)
    assert total <= limit
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 99


def test_addresses_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.addresses_left() is None
    monkeypatch.setattr(limits, "_address_limits", lambda: [("ulimit -v", 1 << 50)])
    left = limits.addresses_left()
    assert left is not None
    assert 0 < left < 1 << 50
    monkeypatch.setattr(limits, "_address_limits", lambda: [("ulimit -v", 1)])
    assert limits.addresses_left() == 0
