"""The default number of threads: physical cores within affinity and quotas, on simulated machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaski.ml import limits, machine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the root of a machine with four cores of two processors each; every second one is a sibling."""
    for processor in range(8):
        write(
            tmp_path,
            f"cpus/cpu{processor}/topology/thread_siblings_list",
            f"{processor % 4},{processor % 4 + 4}",
        )
    monkeypatch.setattr(machine, "_PROCESSORS", tmp_path / "cpus")
    monkeypatch.setattr(limits, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_NODES", tmp_path / "nodes")
    allow(monkeypatch, range(8))
    return tmp_path


def allow(monkeypatch: pytest.MonkeyPatch, processors: range) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(processors), raising=False)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def test_siblings_count_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.physical_cores() == 4
    allow(monkeypatch, range(3, 5))  # half of two cores
    assert machine.physical_cores() == 2
    allow(monkeypatch, range(0, 5, 4))  # both processors of one core
    assert machine.physical_cores() == 1


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("max", 4), ("50000", 1), ("100000", 1), ("115000", 1), ("150000", 2), ("200000", 2), ("900000", 4)],
)
def test_quotas_bound_the_cores(root: Path, quota: str, threads: int) -> None:
    write(root, "proc/self/mountinfo", f"2 1 0:1 / {root}/cgroup rw - cgroup2 cgroup rw")
    write(root, "proc/self/cgroup", "0::/system.slice/chaski.service")
    write(root, "cgroup/system.slice/cpu.max", f"{quota} 100000")
    write(root, "cgroup/system.slice/chaski.service/cpu.max", "max 100000")
    assert machine.physical_cores() == threads


def test_memory_nodes_are_those_of_processors_that_may_be_used(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, processors in enumerate(("0-1,4-5", "2-3,6-7", "")):  # the last has only memory
        write(root, f"nodes/node{node}/cpulist", processors)
    assert machine.memory_nodes() == [0, 1]
    allow(monkeypatch, range(2, 4))
    assert machine.memory_nodes() == [1]


def test_a_machine_that_tells_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.memory_nodes() == []
    monkeypatch.setattr(machine, "_PROCESSORS", root / "nothing")
    assert machine.physical_cores() == 8


def test_processors_of_one_name_are_told_apart(root: Path) -> None:
    zen3, zen4 = (
        f"processor : 0\ncpu family : 25\nmodel : {model}\nmodel name : AMD EPYC\nstepping : 1\n"
        for model in (1, 17)
    )
    write(root, "cpuinfo", zen3 + "\n" + zen4.replace("processor : 0", "processor : 1"))
    assert machine.cpu_name() == "AMD EPYC"
    found = machine.cpu_model()
    assert found == "AMD EPYC, cpu family 25, model 1, stepping 1"
    write(root, "cpuinfo", zen4)
    assert machine.cpu_model() != found


def test_processors_without_a_name_are_told_apart(root: Path) -> None:
    write(root, "cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU variant : 0x1\nCPU part : 0xd40")
    assert machine.cpu_model().endswith(", CPU implementer 0x41, CPU variant 0x1, CPU part 0xd40")


def test_the_largest_cache_is_that_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports it in kilobytes; without a report it is small."""
    monkeypatch.setattr(machine, "_PROCESSORS", tmp_path)
    assert machine.largest_cache.__wrapped__() == 8 << 20
    for index, size in enumerate(("48K", "1024K", "32768K", "many")):
        folder = tmp_path / f"cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert machine.largest_cache.__wrapped__() == 32 << 20
