"""The worker of a replica: a hung process is killed and loaded again; the replica shows that it lives."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaski.chat.events import Done
from chaski.chat.requests import Generate
from chaski.cluster.watched_worker import WatchedWorker, WorkerPatience
from chaski.errors import ModelNotFoundError, WorkerError
from chaski.runner.channels.messages import LookLive, ReplyOrError
from chaski.runner.channels.worker.client import Worker
from chaski.runner.engine.live import LiveSequences
from tests.server.running import wait_until
from tests.tiny_llama import write_tiny_llama

ENDLESS = Generate(prompt="a", options={"num_predict": 100_000, "ignore_eos": True, "shift": True})


class Watched:
    """A watched worker, and the shares that it told of. `stop` ends the watching."""

    def __init__(self, path: Path, patience: WorkerPatience) -> None:
        self.shares: list[float] = []
        self.lost: list[str] = []
        self.worker: Worker
        self.watched = WatchedWorker(
            lambda progress: self._open(path, progress), self.shares.append, patience, self.lost.append
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _open(self, path: Path, progress: Callable[[float], None]) -> Worker:
        self.worker = Worker(path, threads=1, progress=progress)
        return self.worker

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            self.watched.watch()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.watched.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf")


@pytest.fixture
def found(path: Path) -> Iterator[Watched]:
    found = Watched(path, WorkerPatience(silence=1.0))
    yield found
    found.stop()


def look(watched: WatchedWorker) -> ReplyOrError:
    replies: list[ReplyOrError] = []
    watched.start(LookLive(), replies.append)
    wait_until(lambda: replies)
    return replies[0]


@pytest.mark.long
def test_a_hung_worker_is_killed_and_loaded_again(found: Watched) -> None:
    before = found.worker.pid
    assert before is not None
    replies: list[ReplyOrError] = []
    found.watched.start(ENDLESS, replies.append)
    wait_until(lambda: replies)
    os.kill(before, signal.SIGSTOP)
    wait_until(lambda: isinstance(replies[-1], WorkerError))
    wait_until(lambda: found.shares and found.shares[-1] == 1.0)
    assert found.worker.pid not in (None, before)
    found.watched.check_health()
    again: list[ReplyOrError] = []
    found.watched.start(Generate(prompt="a", options={"num_predict": 2, "ignore_eos": True}), again.append)
    wait_until(lambda: again and isinstance(again[-1], Done))


@pytest.mark.long
def test_a_long_answer_and_an_idle_worker_live_on(found: Watched) -> None:
    before = found.worker.pid
    handle = found.watched.start(ENDLESS, lambda reply: None)
    time.sleep(2.0)
    handle.cancel()
    time.sleep(1.5)
    assert found.worker.pid == before


def test_a_dead_worker_is_loaded_again_without_a_request(found: Watched) -> None:
    before = found.worker.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: found.worker.pid not in (None, before) and found.shares and found.shares[-1] == 1.0)


def test_calls_do_not_fail_one_after_another_when_no_worker_can_be_started(
    found: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica ends, so its requests wait for another one."""

    def start(call: object, put: object) -> None:
        raise WorkerError("loading failed 3 times in a row")

    monkeypatch.setattr(found.worker, "start", start)
    wait_until(lambda: found.lost)
    assert found.lost[0] == "loading failed 3 times in a row"


def test_the_replica_answers_for_a_worker_that_loads(found: Watched, path: Path) -> None:
    assert found.worker.pid is not None
    found.watched._note_share(0.0)
    reply = look(found.watched)
    assert isinstance(reply, LiveSequences)
    assert reply.num_sequences == 0


def test_a_model_that_cannot_be_loaded_again_makes_the_replica_ill(found: Watched, path: Path) -> None:
    assert found.worker.pid is not None
    path.unlink()
    os.kill(found.worker.pid, signal.SIGKILL)

    def is_well() -> bool:
        try:
            found.watched.check_health()
        except ModelNotFoundError:
            return False
        return True

    wait_until(lambda: not is_well())
