"""Threads and time of a simulated world: one seed decides which thread runs next, and a virtual clock.

Threads are greenlets, so exactly one runs at a time. A thread can lose its turn only where it waits, takes or
releases a lock, or changes a file. Time passes when no thread can run, and a little with every turn.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heappop, heappush
from random import Random
from typing import Any
from zlib import crc32

from greenlet import greenlet

__all__ = ["SCHEDULER", "Killed", "Process", "Scheduler", "StuckError", "Thread"]

_TURN_SECONDS = 2e-5
_MOST_TURNS, _TURNS_A_SECOND = 20_000, 2_000
_MOST_PAUSES = 50
_EPOCH = 1.8e9


class Killed(SystemExit):
    """Ends a thread of a process that was killed."""


class StuckError(AssertionError):
    """A condition does not come true: no thread can run, or too much time has passed."""


class Process:
    """Threads that are stopped and killed together. `on_death` functions run when the process has died."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = self.is_stopped = False
        self.held: list[Thread] = []
        self.on_death: list[Callable[[], None]] = []


class Thread:
    """A simulated thread.

    ticket    number of its waits: a wake-up for an earlier wait is ignored
    sentinel  lock that `threading` waits for when it joins the thread
    """

    def __init__(self, ident: int, name: str, process: Process, run: Callable[[], None]) -> None:
        self.ident = ident
        self.name = name
        self.process = process
        self.greenlet = greenlet(run, SCHEDULER.hub)
        self.ticket = 0
        self.is_waiting = self.was_woken = False
        self.sentinel: Any = None


class Scheduler:
    """Runs simulated threads. `current` is the running one; None while the simulation itself runs.

    first_ident  where the idents of threads begin, which differ from those of other schedulers
    now      seconds of the virtual clock; `wall` is the time of day, which jumps
    digest   checksum of all decisions so far
    errors   errors that ended threads
    """

    def __init__(self, first_ident: int = 1000) -> None:
        self.first_ident = first_ident
        self.current: Thread | None = None
        self.hub = greenlet.getcurrent()
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin a world without threads."""
        self.random = Random(seed)
        self.entropy = Random(seed + 1)
        self.now = 0.0
        self.wall_offset = _EPOCH
        self.switch_rate = 0.0
        self.digest = self.num_turns = self._num_pauses = 0
        self.threads: dict[int, Thread] = {}
        self.errors: list[str] = []
        self.world = Process("world")
        self._ready: list[Thread] = []
        self._sleeping: list[tuple[float, int, int, Thread]] = []
        self._idents = itertools.count(self.first_ident)
        self.numbers = itertools.count()
        self.pids = itertools.count(100)

    @contextmanager
    def aside(self, other: Scheduler) -> Iterator[None]:
        """Run the threads of another world within the block, while those of this one stand still."""
        here = self.__dict__
        self.__dict__ = other.__dict__
        try:
            yield
        finally:
            self.__dict__ = here

    @property
    def wall(self) -> float:
        return self.now + self.wall_offset

    @property
    def can_run(self) -> bool:
        """Whether any thread can run now or later."""
        return bool(self._ready or self._sleeping)

    @property
    def process(self) -> Process:
        """The process of the running thread."""
        return self.world if self.current is None else self.current.process

    def note(self, what: str) -> None:
        """Make an event part of the trace."""
        self.digest = crc32(what.encode(), self.digest)

    def spawn(
        self,
        work: Callable[..., object],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "thread",
        process: Process | None = None,
    ) -> Thread:
        """Start a thread in a process, or in that of the running thread."""
        if self.current is not None:
            self._check_alive(self.current)

        def run() -> None:
            try:
                work(*arguments, **(options or {}))
            except (Exception, SystemExit) as error:
                if not (thread.process.is_dead or isinstance(error, SystemExit)):
                    raise
            finally:
                self.threads.pop(thread.ident, None)
                library: Any = threading
                library._active.pop(thread.ident, None)  # a later world gives the ident to another thread
                if thread.sentinel is not None and thread.sentinel.locked():
                    thread.sentinel.release()

        thread = Thread(next(self._idents), name, process or self.process, run)
        self.threads[thread.ident] = thread
        self._ready.append(thread)
        return thread

    def wait(self, seconds: float | None = None) -> bool:
        """Let others run until the running thread is woken or the time is over; return whether it was woken.

        The simulation itself runs one turn of another thread instead.
        """
        thread = self.current
        if thread is None:
            self.turn()
            return True
        self._check_alive(thread)
        thread.ticket += 1
        thread.is_waiting, thread.was_woken = True, False
        if seconds is not None:
            heappush(
                self._sleeping, (self.now + max(seconds, 0.0), next(self.numbers), thread.ticket, thread)
            )
        self.hub.switch()
        self._check_alive(thread)
        return thread.was_woken

    def wake(self, thread: Thread) -> None:
        """End the wait of a thread."""
        if thread.is_waiting and not thread.process.is_dead:
            thread.was_woken = True
            self._make_ready(thread)

    def pause(self) -> None:
        """Let another thread run, as often as the seed decides, and after many pauses in one turn."""
        thread = self.current
        if thread is None:
            return
        self._check_alive(thread)
        self._num_pauses += 1
        is_switched = self._num_pauses >= _MOST_PAUSES  # it may wait busily for something
        if is_switched or (self._ready and self.random.random() < self.switch_rate):
            self._ready.append(thread)
            self.hub.switch()
            self._check_alive(thread)

    def sleep(self, seconds: float) -> None:
        if self.current is None:
            self.run_for(seconds)
        else:
            self.wait(seconds)

    def turn(self) -> None:
        """Give one thread its turn; move the clock if all wait. Raises StuckError if none will ever run."""
        self._wake_sleepers()
        while not self._ready:
            if not self._sleeping:
                raise StuckError(f"no thread can run: {self._listed()}")
            self.now = max(self.now, self._sleeping[0][0])
            self._wake_sleepers()
        index = int(self.random.random() * len(self._ready))
        thread = self._ready[index]
        self._ready[index] = self._ready[-1]
        self._ready.pop()
        if thread.process.is_stopped:
            thread.process.held.append(thread)
            return
        self.now += _TURN_SECONDS
        self.num_turns += 1
        self._num_pauses = 0
        self.digest = crc32(b"%d" % thread.ident, self.digest)
        self._switch_to(thread)

    def run_until(self, is_true: Callable[[], bool], seconds: float, what: str) -> None:
        """Run threads until a condition is true.

        Raises StuckError after that many simulated seconds, and after many turns, if threads wait busily.
        """
        begun, turns = self.now, self.num_turns
        while not is_true():
            if self.now > begun + seconds:
                raise StuckError(f"{what} takes more than {seconds:.0f} s: {self._listed()}")
            self._check_turns(begun, turns)
            self.turn()

    def run_for(self, seconds: float) -> None:
        """Run threads for that many simulated seconds. Raises StuckError after many turns."""
        begun, turns, end = self.now, self.num_turns, self.now + seconds
        while self.now < end:
            self._check_turns(begun, turns)
            self._wake_sleepers()
            if not self._ready and (not self._sleeping or self._sleeping[0][0] >= end):
                self.now = end
                return
            self.turn()

    def _check_turns(self, begun: float, turns: int) -> None:
        """Raise StuckError after more turns than threads take that do not wait busily.

        Those that ask again and again in the time of a silent server take some hundred a second.
        """
        taken, seconds = self.num_turns - turns, self.now - begun
        if taken > _MOST_TURNS + _TURNS_A_SECOND * seconds:
            raise StuckError(f"threads take {taken} turns in {seconds:.1f} s: {self._listed()}")

    def stop(self, process: Process) -> None:
        """Give the threads of a process no turns until `resume`."""
        process.is_stopped = True

    def resume(self, process: Process) -> None:
        process.is_stopped = False
        held, process.held = process.held, []
        self._ready += held

    def kill(self, process: Process) -> None:
        """End all threads of a process where they are. Nothing that they still try has an effect.

        A thread that kills its own process continues with Killed.
        """
        if process.is_dead:
            return
        process.is_dead = True
        process.is_stopped = False
        process.held = []
        self.note(f"kill {process.name}")
        mine = [thread for thread in self.threads.values() if thread.process is process]
        self._ready = [thread for thread in self._ready if thread.process is not process]
        for thread in mine:
            if thread is not self.current:
                thread.is_waiting = False
                self._throw(thread)
        for function in process.on_death:
            function()
        if self.current is not None and self.current.process is process:
            raise Killed

    def kill_all(self) -> None:
        """End all threads of the world."""
        for process in dict.fromkeys(thread.process for thread in self.threads.values()):
            self.kill(process)
        assert not self.threads, f"killed threads live: {self._listed()}"

    def _throw(self, thread: Thread) -> None:
        """Raise Killed in a thread, as its parent."""
        before, self.current = self.current, thread
        thread.greenlet.parent = greenlet.getcurrent()
        try:
            thread.greenlet.throw(Killed)
        except Killed:
            pass  # it had not begun
        finally:
            self.current = before
            self.threads.pop(thread.ident, None)  # one that had not begun does not remove itself

    def _switch_to(self, thread: Thread) -> None:
        self.current = thread
        try:
            thread.greenlet.switch()
        finally:
            self.current = None

    def _wake_sleepers(self) -> None:
        while self._sleeping and self._sleeping[0][0] <= self.now:
            _, _, ticket, thread = heappop(self._sleeping)
            if thread.is_waiting and thread.ticket == ticket:
                self._make_ready(thread)
        while self._sleeping and not self._is_awaited(*self._sleeping[0][2:]):
            heappop(self._sleeping)

    def _is_awaited(self, ticket: int, thread: Thread) -> bool:
        return thread.is_waiting and thread.ticket == ticket

    def _make_ready(self, thread: Thread) -> None:
        thread.is_waiting = False
        self._ready.append(thread)

    def _check_alive(self, thread: Thread) -> None:
        if thread.process.is_dead:
            raise Killed

    def _listed(self) -> str:
        return ", ".join(f"{each.name} of {each.process.name}" for each in self.threads.values()) or "none"


SCHEDULER = Scheduler()
"""The threads of this process: `tests.simulation.install` makes them those of Python's library."""
