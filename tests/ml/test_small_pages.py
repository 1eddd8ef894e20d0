"""Memory that is taken in small pages: which of a process's memory is new."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from chaski.ml.cpu import small_pages
from chaski.ml.cpu.small_pages import SmallPages

RANGES = [(0, 10), (20, 30), (40, 60)]


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], RANGES),
        (RANGES, []),
        ([(0, 60)], []),
        ([(2, 4), (25, 50)], [(0, 2), (4, 10), (20, 25), (50, 60)]),
        ([(10, 20), (60, 70)], RANGES),
    ],
)
def test_what_is_new(others: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert list(small_pages._without(RANGES, others)) == left


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system lists no memory")
def test_new_memory_is_taken_in_small_pages() -> None:
    pages = SmallPages()
    pages.begin()
    pages.begin()
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        pages.end()
        flags = [
            line.split()[1:]
            for line in Path("/proc/self/smaps").read_text().splitlines()
            if line.startswith("VmFlags")
        ]
        assert any("nh" in each for each in flags)
    pages.end()


def test_a_system_that_lists_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_pages, "_MAPS", Path("/nowhere"))
    pages = SmallPages()
    pages.begin()
    pages.end()
