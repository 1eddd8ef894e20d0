"""Ends of workers and their parents: kills, closing, signals, and the next request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import AdapterNotFoundError, ClosedError, WorkerError
from chaski.runner.channels.messages import Tokenize
from chaski.runner.channels.worker import process as process_module
from chaski.runner.channels.worker.client import Worker
from tests.adapted_model import write_adapted
from tests.runner.channels.worker.workers import is_running, is_stopped, same

ROOT = Path(__file__).parents[4]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited for 10 s"
        time.sleep(0.005)


@pytest.mark.long
@pytest.mark.parametrize("streams", ["2>&-", "<&- >&- 2>&-"])
def test_a_program_without_standard_streams_has_workers(streams: str, tmp_path: Path) -> None:
    """Otherwise the socket to the worker would become its standard stream and receive logs."""
    program = (
        "import sys; from chaski.runner.channels.worker.client import Worker\n"
        "with Worker('guide', threads=1) as worker:\n"
        "    text = worker.generate('hello', num_predict=2).text\n"
        "open(sys.argv[1], 'w').write(text)"
    )
    written = tmp_path / "answer"
    command = f'exec "$0" -c "$1" "$2" {streams}'
    subprocess.run(["bash", "-c", command, sys.executable, program, written], cwd=ROOT, timeout=60)
    with Worker("guide", threads=1) as worker:
        assert written.read_text() == worker.generate("hello", num_predict=2).text


def test_a_kill_fails_what_is_in_flight_and_nothing_else(endless: dict[str, Any]) -> None:
    with Worker("guide", threads=1, parallel=2) as worker:
        before = worker.generate("hello", seed=1, num_predict=5)
        first = worker.pid
        assert first is not None
        streams = [worker.stream(**endless) for _ in range(4)]
        for stream in streams[:2]:
            next(stream)
        os.kill(first, signal.SIGKILL)
        for stream in streams[:2]:
            with pytest.raises(
                WorkerError, match=rf"worker of guide \(process {first}\) was ended by signal 9"
            ):
                for _ in stream:
                    pass
        assert not Path(f"/proc/{first}").exists()
        assert same(worker.generate("hello", seed=1, num_predict=5), before)
        assert worker.pid not in (None, first)
        assert isinstance(next(streams[2]), chaski.Text)


def test_a_worker_that_ends_by_itself_says_how(worker: Worker, endless: dict[str, Any]) -> None:
    for number in (signal.SIGSEGV, signal.SIGTERM):
        with closing(worker.stream(**endless)) as events:
            next(events)
            assert worker.pid is not None
            os.kill(worker.pid, number)
            with pytest.raises(WorkerError, match=f"signal {int(number)} "):
                for _ in events:
                    pass


def test_a_worker_that_is_killed_at_rest(worker: Worker) -> None:
    worker.info()
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: worker.pid is None)
    assert worker.generate("hello", num_predict=1, ignore_eos=True).done_reason == "length"


def test_adapters_that_were_loaded_meanwhile_are_loaded_by_the_next_process(tmp_path: Path) -> None:
    """Those that were unloaded are not. A file that is gone ends only the requests that choose it."""
    files = write_adapted(tmp_path)
    with Worker(files["model"], threads=1, context=64, adapters={"one": files["one"]}) as worker:
        for name in ("two", "few", "again"):
            worker.load_adapter(name, files[name.replace("again", "two")])
        for name in ("one", "again"):
            worker.unload_adapter(name)
        asked: Any = {"num_predict": 8, "temperature": 0, "ignore_eos": True}
        expected = worker.generate("the load", adapter="two", **asked).token_ids
        assert expected != worker.generate("the load", **asked).token_ids
        files["few"].unlink()
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: worker.pid is None)
        assert worker.generate("the load", adapter="two", **asked).token_ids == expected
        assert [adapter.name for adapter in worker.adapters()] == ["two"]
        with pytest.raises(AdapterNotFoundError, match="few"):
            worker.generate("the load", adapter="few", **asked)


@pytest.mark.long
def test_a_request_to_a_worker_that_is_just_killed(worker: Worker) -> None:
    """Whether its end is known yet or not, no part of the request is lost, so another process answers it."""
    expected = worker.generate("hello", num_predict=3, temperature=0)
    for _ in range(5):
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert same(worker.generate("hello", num_predict=3, temperature=0), expected)
        assert worker.pid not in (None, pid)


def test_what_a_worker_had_not_read_goes_to_the_next(worker: Worker, endless: dict[str, Any]) -> None:
    """A stopped process does not read; calls without a waiting caller are not sent again."""
    with closing(worker.stream(**endless)) as begun:
        next(begun)
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid))
        unread = [worker.stream("hello", num_predict=3, temperature=0, ignore_eos=True) for _ in range(3)]
        threads = [threading.Thread(target=lambda s=stream: results.append(list(s))) for stream in unread]
        results: list[list[Any]] = []
        for thread in threads:
            thread.start()
        cancelled = worker.start(Tokenize("hello"), lambda reply: results.append([reply]))
        time.sleep(0.2)
        cancelled.cancel()
        os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        assert [events[-1].reason for events in results] == ["length"] * 3
        with pytest.raises(WorkerError, match="signal 9"):
            list(begun)


@pytest.mark.long
def test_nothing_is_left_of_many_lives() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Worker("guide", threads=1) as worker:
        worker.info()
        before, threads = descriptors(), threading.active_count()
        for _ in range(3):
            pid = worker.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: worker.pid is None)
            worker.info()
            assert not Path(f"/proc/{pid}").exists()
        assert descriptors() == before
        assert threading.active_count() == threads
        last = worker.pid
    assert not Path(f"/proc/{last}").exists()
    assert descriptors() < before


def test_closing(endless: dict[str, Any]) -> None:
    worker = Worker("guide", threads=1)
    events = worker.stream(**endless)
    next(events)
    started = time.perf_counter()
    worker.close()
    assert time.perf_counter() - started < 1
    with pytest.raises(ClosedError, match="this model is closed"):
        for _ in events:
            pass
    with pytest.raises(ClosedError, match="this model is closed"):
        worker.info()
    worker.close()


def test_a_worker_that_does_not_react_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_GRACE", 0.1)
    with Worker("guide", threads=1) as worker:
        worker.info()
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert not Path(f"/proc/{pid}").exists()


PARENT = """
import os, signal, sys, time
from chaski.runner.channels.messages import Tokenize
from chaski.runner.channels.worker.client import Worker

worker = Worker("guide", threads=1)
events = worker.stream("0", temperature=0, ignore_eos=True)
next(events)
"""


def parent(rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT + rest],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        process_group=0,
    )


def test_a_worker_ends_with_its_parent() -> None:
    with parent("print(worker.pid, flush=True)\nfor _ in events: pass") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
    wait_until(lambda: not is_running(pid))


def test_a_parent_that_just_ends_closes_its_worker() -> None:
    with parent("print(worker.pid)") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
    assert process.returncode == 0
    assert not is_running(pid)


@pytest.mark.long
def test_ctrl_c_is_the_parents_affair() -> None:
    rest = """
try:
    print(worker.pid, flush=True)
    for _ in events: pass
except KeyboardInterrupt:
    events.close()
    worker.generate("hello", num_predict=1)
    print(worker.pid)
"""
    with parent(rest) as process:
        assert process.stdout is not None
        pid = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == pid
    assert process.returncode == 0
