"""A server's memory after large requests."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from chaski.server.freed_memory import keep_little_freed_memory

def anonymous_megabytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1000

def take_and_free():
    together.wait()
    with one_after_the_other:
        blocks = [b"x" * 100_000 for _ in range(100)]
        kept.append(bytes(5_000))
        del blocks
    together.wait()

if sys.argv[1] == "little":
    keep_little_freed_memory()
kept = []
together, one_after_the_other = threading.Barrier(8), threading.Lock()
threads = [threading.Thread(target=take_and_free) for _ in range(8)]
before = anonymous_megabytes()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(anonymous_megabytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have one heap")
def test_threads_do_not_keep_freed_memory_each_for_itself() -> None:
    grown = {}
    for how in ("usual", "little"):
        run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        grown[how] = float(run.stdout)
    assert grown["little"] < 25 < grown["usual"]
