"""Several workers of one file: one copy of its panels in memory, and none after they end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import chaski
from chaski import _native
from chaski.runner.channels.worker.client import Worker
from tests.runner.channels.worker.workers import QUESTION, same

pytestmark = pytest.mark.skipif(not _native.can_share_huge_pages(), reason="no huge pages to share here")


def shared_memory(worker: Worker) -> tuple[int, int]:
    """Return the bytes of shared memory that a worker maps, and its proportional share."""
    text = Path(f"/proc/{worker.pid}/smaps").read_text()
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)
    own = "\n".join(mapping for mapping in mappings if "/memfd:chaski-weights/" in mapping)
    rss, pss = (sum(map(int, re.findall(rf"^{key}: +(\d+) kB", own, re.MULTILINE))) for key in ("Rss", "Pss"))
    return 1024 * rss, 1024 * pss


def is_there(pid: int | None) -> bool:
    """Return whether a process is recorded to have shared memory; the record ends with its last thread."""
    sockets = Path("/proc/net/unix").read_text()
    return re.search(rf"@chaski-weights/\w+/{pid}/", sockets) is not None


def test_workers_share_one_copy(tmp_path: Path) -> None:
    path = shutil.copy(Path(chaski.__file__).parent / "models" / "guide.gguf", tmp_path / "model.gguf")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(closing(Worker(path, threads=1, context=context))) for context in (512, 640)
        ]
        answers = [worker.chat(QUESTION, temperature=0.0, num_predict=20) for worker in workers]
        assert same(*answers)
        for worker in workers:
            seen, part = shared_memory(worker)
            assert seen > 2 << 20
            assert abs(part - seen // 2) < 1 << 16
        pids = [worker.pid for worker in workers]
        assert all(map(is_there, pids))
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while any(is_there(pid) for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.01)
