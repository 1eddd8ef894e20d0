"""Simulated processes of workers, and the sockets over which the real client and worker talk."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

from chaski.runner.channels.worker import __main__ as worker_main
from chaski.runner.channels.worker import process as parent
from chaski.runner.engine.engine import Engine
from chaski.runner.llm import LLM
from chaski.runner.loading.loader import load
from tests.simulation.scheduler import SCHEDULER, Killed, Process, Thread

__all__ = ["Popen", "Socket", "use_simulated_processes"]

_ROOM = 1 << 16
_FIRST_DESCRIPTOR = 1 << 20


class Socket:
    """One end of a connected pair of stream sockets. It takes and gives parts of data at `part_rate`."""

    part_rate: ClassVar[float] = 0.1
    open_ends: ClassVar[dict[int, Socket]] = {}
    _numbers = itertools.count(_FIRST_DESCRIPTOR)

    def __init__(self) -> None:
        self.other: Socket = self
        self._number = next(self._numbers)
        self._arrived = bytearray()
        self._has_ended = self._is_closed = False
        self._waiting: list[Thread] = []
        self.open_ends[self._number] = self

    @classmethod
    def pair(cls) -> tuple[Socket, Socket]:
        one, other = cls(), cls()
        one.other, other.other = other, one
        return one, other

    @classmethod
    def inherited(cls, fileno: int) -> Socket:
        """Return the end that a parent has passed to its child."""
        return cls.open_ends[fileno]

    def fileno(self) -> int:
        return self._number

    def send(self, data: bytes, flags: int = 0) -> int:
        SCHEDULER.pause()
        while True:
            if self._has_ended or self._is_closed or self.other._is_closed:
                raise BrokenPipeError
            room = _ROOM - len(self.other._arrived)
            if room > 0 and data:
                # A part of the data, as a socket may take it.
                count = min(len(data), room)
                if SCHEDULER.random.random() < self.part_rate:
                    count = SCHEDULER.random.randint(1, count)
                self.other._arrived += data[:count]
                self.other._notify()
                return count
            if not data:
                return 0
            if flags & socket.MSG_DONTWAIT:
                raise BlockingIOError
            self._wait()

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[self.send(data) :]

    def recv(self, count: int) -> bytes:
        while not self._arrived:
            if self._has_ended or self._is_closed:
                return b""
            self._wait()
        if SCHEDULER.random.random() < self.part_rate:
            count = SCHEDULER.random.randint(1, len(self._arrived))
        data = bytes(self._arrived[:count])
        del self._arrived[:count]
        self.other._notify()
        return data

    def shutdown(self, how: int) -> None:
        for end in (self, self.other):
            end._has_ended = True
            end._notify()

    def close(self) -> None:
        self._is_closed = True
        self.shutdown(socket.SHUT_RDWR)
        self.open_ends.pop(self._number, None)

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *error: object) -> None:
        """Close this process's copy of an end that a child has inherited."""

    def _wait(self) -> None:
        if SCHEDULER.current is not None:
            self._waiting.append(SCHEDULER.current)
        SCHEDULER.wait()

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            SCHEDULER.wake(thread)


class Popen:
    """A simulated process that runs a worker. `engine` is that of its model as soon as it is loaded."""

    running: ClassVar[dict[int, Popen]] = {}

    def __init__(self, command: list[str], **options: object) -> None:
        SCHEDULER.pause()
        self.pid = next(SCHEDULER.pids)
        self.status: int | None = None
        self.engine: Engine | None = None
        self._waiting: list[Thread] = []
        self.process = Process(f"worker {self.pid}")
        self.process.on_death += [Socket.open_ends[int(command[-1])].close, self._died]
        self.running[self.pid] = self
        SCHEDULER.spawn(self._run, (command[-1],), name="main", process=self.process)

    def _run(self, descriptor: str) -> None:
        place: Any = worker_main
        place.sys = SimpleNamespace(argv=["worker", descriptor])
        worker_main.main()

    def exit(self, status: int) -> None:
        """End with a status, unless the process is ending with another one."""
        if self.status is None:
            self.status = status
        SCHEDULER.kill(self.process)

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else SCHEDULER.now + timeout
        while self.status is None or not self.process.is_dead:
            left = None if end is None else end - SCHEDULER.now
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            if SCHEDULER.current is not None:
                self._waiting.append(SCHEDULER.current)
            SCHEDULER.wait(left)
        return self.status

    def _died(self) -> None:
        self.running.pop(self.pid, None)
        for thread in self._waiting:
            SCHEDULER.wake(thread)


def _exit(status: int) -> None:
    """End the simulated process of the running thread, as `os._exit`."""
    process = SCHEDULER.process
    for each in list(Popen.running.values()):
        if each.process is process:
            each.exit(status)
    raise Killed


def _load(*arguments: Any, **options: Any) -> LLM:
    """Load a model, and let its process know its engine."""
    model = load(*arguments, **options)
    for each in Popen.running.values():
        if each.process is SCHEDULER.process:
            each.engine = model.engine
    return model


def use_simulated_processes() -> None:
    """Let workers run in simulated processes from now on."""
    place: Any = parent
    place.socket = SimpleNamespace(socketpair=Socket.pair, socket=socket.socket)
    place.subprocess = SimpleNamespace(
        Popen=Popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    place = worker_main
    place.socket = SimpleNamespace(socket=Socket.inherited)
    place.os = SimpleNamespace(_exit=_exit, getpid=os.getpid, set_inheritable=lambda *_: None)
    place.load = _load
    place.faulthandler = SimpleNamespace(enable=lambda: None)
    place.resource = SimpleNamespace(setrlimit=lambda *_: None, RLIMIT_CORE=0)
    assert sys.modules[worker_main.__name__] is worker_main
