"""The parent's end of a worker: the methods of `LLM`, with another process answering."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

from chaski.chat.arguments import path_text
from chaski.chat.several import ProgressOption, check_progress
from chaski.errors import ChaskiError, WorkerError
from chaski.names import check_engine
from chaski.runner.adapters.adapter_calls import LateAdapters, LoadAdapter, UnloadAdapter, adapter_files
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.blocking import ChannelMethods
from chaski.runner.channels.messages import CallHandle, Describe, Info, ModelCall, ReplyCallback, ReplyOrError
from chaski.runner.channels.worker.codec import Load, encode_call, protocol
from chaski.runner.channels.worker.open_calls import InFlight
from chaski.runner.channels.worker.process import Process
from chaski.runner.keywords import LoadOptions, check_load_options, load_options
from chaski.runner.use_guard import UseGuard

__all__ = ["LoadOptions", "Worker"]

# After this many processes in a row have ended while loading, wait this many seconds.
_MAX_CRASHES = 3
_PAUSE = 30.0


class Worker(ChannelMethods):
    """A model in its own process, with the methods of an `LLM`. Safe to use from several threads.

    The first request or access to `info` starts the process. If the process dies, the requests that it was
    answering fail with WorkerError. The next request starts another process, which also answers the requests
    that the old one had not read, and loads the adapters that were added meanwhile. Loading raises the errors
    of `chaski.load`. `progress=True` draws a bar; a function is called from another thread with the loaded
    fraction.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        progress: ProgressOption = False,
        restarts: bool = True,
        environment: Mapping[str, str] | None = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        check_load_options(options)
        check_engine(options.get("engine"))
        check_progress(progress)
        self._model = model if isinstance(model, str) else path_text(model, "the model")
        self._options: dict[str, Any] = load_options(**options)
        if "adapters" in options:
            self._options["adapters"] = adapter_files(options["adapters"])
        self._progress = progress
        self._restarts = restarts
        self._environment = {} if environment is None else environment
        self._folder = Path.cwd()
        self._process: Process | None = None
        self._starting = threading.Lock()
        self._patience = _Patience()
        self._late_adapters = LateAdapters()
        self._guard = UseGuard(f"the worker of {self._model}")
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self.pid is not None

    @property
    def num_replicas(self) -> int:
        """The number of processes that answer: one."""
        return 1

    def info(self) -> Info:
        """Return the description of the model. Loads the model if necessary."""
        return self._ask(Describe(), Info)

    def asynchronous(self) -> AsyncModel:
        """Return the model for event loops: `async for event in worker.asynchronous().stream(prompt)`."""
        self.check_open()
        return AsyncModel(self)

    def start(self, call: ModelCall, put: ReplyCallback) -> CallHandle:
        """Send a call, to a new process if none runs; does not block (see `Channel`).

        Raises OptionError for values that cannot be sent, WorkerError if no process can be started, and the
        errors of `check_open`.
        """
        self.check_open()
        if isinstance(call, LoadAdapter | UnloadAdapter):
            put = self._noting(call, put)
        return self._living_process().calls.start(encode_call(call), put)

    def check_open(self) -> None:
        """Raise ClosedError after `close`, and ForkError in a forked process, because the worker only answers
        the process that started it.
        """
        self._guard.check()

    def close(self) -> None:
        """End the process. Requests that it was answering and later ones fail with ClosedError.

        In a forked process this has no effect on the worker.
        """
        atexit.unregister(self.close)
        if self._guard.is_forked:
            return
        with self._starting:
            self._guard.close()
            process = self._process
        if process is not None:
            process.close()

    def __repr__(self) -> str:
        process = self._process
        if self._guard.is_closed:
            state = "closed"
        elif process is None or process.error is not None:
            state = "not running; the next call loads the model"
        elif process.info is None:
            state = "loading"
        else:
            memory = process.info.memory.total / 1e9
            state = f"context {process.info.context}, {memory:.2f} GB, process {process.pid}"
        return f"<Worker {self._model}: {state}>"

    def _living_process(self) -> Process:
        with self._starting:
            if self._process is None or self._process.error is not None:
                self._process = self._next_process()
                # They are loaded before later calls are answered.
                calls = self._process.calls
                self._late_adapters.load(lambda call, put: calls.start(encode_call(call), put))
            return self._process

    def _noting(self, call: LoadAdapter | UnloadAdapter, put: ReplyCallback) -> ReplyCallback:
        """Return `put`, after which the next process gets or lacks the adapter too."""

        def note(reply: ReplyOrError) -> None:
            if not isinstance(reply, Exception):
                self._late_adapters.note(call)
                if isinstance(call, UnloadAdapter):
                    self._options.get("adapters", {}).pop(call.name, None)
            put(reply)

        return note

    def _start_again(self, put: ReplyCallback, call: bytes, ticket: InFlight) -> None:
        """Send a call to the next process."""
        if ticket.is_cancelled:
            return
        try:
            self._living_process().calls.take_over(call, put, ticket)
        except ChaskiError as error:
            put(error)
            return
        if ticket.is_cancelled:  # cancelled meanwhile
            ticket.cancel()

    def _next_process(self) -> Process:
        self._guard.check()
        if self._process is not None and not self._restarts:
            raise WorkerError(str(self._process.error))
        self._patience.check(self._process)
        level = logging.getLogger("chaski").getEffectiveLevel()
        load = Load(self._model, self._options, level, protocol())
        try:
            return Process(load, self._folder, self._environment, self._progress, self._start_again)
        except OSError as error:
            raise WorkerError(f"no worker can be started for {self._model}: {error}") from None


class _Patience:
    """Delays the start of another process after several in a row have ended while loading."""

    def __init__(self) -> None:
        self._seen: Process | None = None
        self._crashes = 0

    def check(self, last: Process | None) -> None:
        """Raise WorkerError if it is too early to start a process after `last`."""
        if last is None or last.info is not None or not isinstance(last.error, WorkerError):
            self._crashes = 0
            return
        if last is not self._seen:
            self._seen = last
            self._crashes += 1
        wait = last.ended_at + _PAUSE - monotonic()
        if self._crashes >= _MAX_CRASHES and wait > 0:
            raise WorkerError(
                f"loading failed {self._crashes} times in a row; the next attempt is possible in "
                f"{wait:.0f} s. The last error: {last.error}"
            )
