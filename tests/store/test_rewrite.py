"""Writing a blob in a thread: an interrupted caller returns only after the last write."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from chaski.store.blobs import Blobs
from chaski.store.rewrite import Note, written


def test_an_interrupt_waits_for_the_end_of_the_writing(tmp_path: Path) -> None:
    has_ended = False

    def write(target: Path, note: Note) -> None:
        nonlocal has_ended
        try:
            while True:
                note(0, 1)
                time.sleep(0.01)
        finally:
            time.sleep(0.2)
            has_ended = True

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        steps = written(Blobs(tmp_path / "blobs"), "writing", write)
        next(steps)
        signal.setitimer(signal.ITIMER_REAL, 0.03)  # within the wait for the next report
        with pytest.raises(KeyboardInterrupt):
            for _ in steps:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert has_ended
    assert not list((tmp_path / "blobs").iterdir())
