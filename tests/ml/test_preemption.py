"""Threads that lose their cores: no thread waits for them for long, and the bits stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import chaski

PROMPT = list(range(5, 25))

several_processors = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="takes two processors"
)


@pytest.fixture
def busy_processor() -> Iterator[int]:
    """Keep a processor busy with another process; yield its number."""
    processor = min(os.sched_getaffinity(0))
    script = (
        f"import os\nos.sched_setaffinity(0, {{{processor}}})\nprint('ready', flush=True)\nwhile True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield processor
        process.kill()


def threads_of_this_process() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


@several_processors
def test_a_worker_that_never_runs_costs_no_more_than_its_help(busy_processor: int) -> None:
    """The worker gets 1.5 % of its core, and another core finishes the work that it began."""
    before = threads_of_this_process()
    with chaski.load("guide", threads=2, context=256) as model:
        model.generate(PROMPT, num_predict=1)
        for thread in threads_of_this_process() - before:
            os.setpriority(os.PRIO_PROCESS, thread, 19)
            os.sched_setaffinity(thread, {busy_processor})
        affinity = os.sched_getaffinity(0)
        started = time.monotonic()
        model.generate(PROMPT, num_predict=200, stop=[], temperature=0)
        # One thread alone takes 0.1 s. Waiting for that worker at each of the 5,000 barriers would take
        # minutes.
        assert time.monotonic() - started < 5
        assert os.sched_getaffinity(0) == affinity


@pytest.mark.long
@several_processors
@pytest.mark.usefixtures("busy_processor")
def test_the_same_bits_beside_a_neighbour() -> None:
    with chaski.load("guide", threads=1, context=64) as model:
        expected = model.logits(PROMPT)
    processors = len(os.sched_getaffinity(0))
    for threads in (2, 2 * processors):
        with chaski.load("guide", threads=threads, context=64) as model:
            for last in range(300, 400):
                model.logits([*PROMPT, last])
            assert np.array_equal(model.logits(PROMPT), expected)
