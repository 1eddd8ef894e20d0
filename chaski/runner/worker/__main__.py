"""The process of a worker: `python -m chaski.runner.worker DESCRIPTOR`, started by `Worker` only."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import socket
import sys
import threading
from functools import partial
from queue import SimpleQueue
from weakref import WeakValueDictionary

from chaski.errors import ChaskiError
from chaski.runner.driver import Task
from chaski.runner.llm import LLM
from chaski.runner.loader import load
from chaski.runner.messages import Call, Reply
from chaski.runner.service import Service, describe
from chaski.runner.worker.codec import Cancel, Failure, Load, Message, Progress
from chaski.runner.worker.link import Link

__all__: list[str] = []

_log = logging.getLogger(__name__)

Arrived = SimpleQueue[tuple[int, Message]]


def main() -> None:
    """Load what the first message says, then answer calls until the parent closes the socket, or ends."""
    faulthandler.enable()
    # What people wrote must not be left on the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    link = Link(socket.socket(fileno=descriptor))
    arrived: Arrived = SimpleQueue()
    threading.Thread(target=_receive, args=(link, arrived), name="chaski-receiver", daemon=True).start()
    number, message = arrived.get()
    assert isinstance(message, Load), "a worker is told first what to load"
    logging.basicConfig(level=message.log_level, format=f"worker {os.getpid()}: %(levelname)s: %(message)s")
    try:
        model = load(message.model, progress=_Shares(number, link), **message.options)
    except Exception as error:
        _reply(link, number, error)
        link.flush()
        os._exit(1)
    link.send(number, describe(model))
    link.flush()
    _serve(model, link, arrived)


def _receive(link: Link, arrived: Arrived) -> None:
    """Ends the process with the stream, whatever it computes: nobody is there to hear of it."""
    try:
        while (message := link.receive()) is not None:
            arrived.put(message)
    except Exception:
        _log.exception("the parent cannot be understood")
    finally:
        os._exit(0)


def _serve(model: LLM, link: Link, arrived: Arrived) -> None:
    service = Service(model, link.flush)
    tasks: WeakValueDictionary[int, Task] = WeakValueDictionary()
    while True:
        number, message = arrived.get()
        if isinstance(message, Cancel):
            task = tasks.get(number)
            if task is not None:
                task.cancel()
        else:
            assert isinstance(message, Call), "a worker is sent calls only"
            tasks[number] = service.start(message, partial(_reply, link, number))


def _reply(link: Link, number: int, reply: Reply | Exception) -> None:
    if isinstance(reply, Exception):
        link.send(number, Failure.of(reply))
        if not isinstance(reply, ChaskiError):
            _log.error("a call failed", exc_info=reply)
    else:
        link.send(number, reply)


class _Shares:
    """Tells the progress of loading, a hundred times at most."""

    def __init__(self, number: int, link: Link) -> None:
        self._number = number
        self._link = link
        self._percent = -1

    def __call__(self, share: float) -> None:
        if int(share * 100) != self._percent:
            self._percent = int(share * 100)
            self._link.send(self._number, Progress(share))
            self._link.flush()


if __name__ == "__main__":
    main()
