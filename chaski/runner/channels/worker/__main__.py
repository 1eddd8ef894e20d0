"""The process of a worker: `python -m chaski.runner.channels.worker DESCRIPTOR`, started by `Worker` only."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from weakref import WeakValueDictionary

from chaski.errors import ChaskiError, ClusterError, DeviceError, ModelError, WorkerError
from chaski.names import LLAMA_CPP
from chaski.runner.channels.engine_channel import EngineChannel, describe
from chaski.runner.channels.messages import CallHandle, Channel, Info, ModelCall, ReplyOrError
from chaski.runner.channels.worker.codec import (
    Cancel,
    Failure,
    Load,
    LoadProgress,
    Received,
    WireMessage,
    decode,
    encode,
    protocol,
)
from chaski.runner.channels.worker.link import Link
from chaski.runner.loading.engine_choice import choose_engine, native_gap, reason_for_llama_cpp
from chaski.runner.loading.files import OpenedModel, found_projector, image_projector
from chaski.runner.loading.loader import load
from chaski.store.model import find_model

__all__: list[str] = []

_log = logging.getLogger(__name__)

Arrived = SimpleQueue[tuple[int, WireMessage]]
Leaving = list[Callable[[], None]]
"""Functions to call before the process ends, whatever it is computing."""


def main() -> None:
    """Load the model of the first message, then answer calls until the parent closes the socket or ends."""
    faulthandler.enable()
    # User prompts must not end up on disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    link = Link(socket.socket(fileno=descriptor))
    arrived: Arrived = SimpleQueue()
    leaving: Leaving = []
    replies = _Replies(link)
    receiving = (link, arrived, leaving, replies)
    threading.Thread(target=_receive, args=receiving, name="chaski-receiver", daemon=True).start()
    number, message = arrived.get()
    assert isinstance(message, Load), "a worker is told first what to load"
    logging.basicConfig(level=message.log_level, format=f"worker {os.getpid()}: %(levelname)s: %(message)s")
    try:
        service, info = _open(message, _Shares(number, link), replies.flush, leaving)
    except Exception as error:
        replies.send(number, error)
        link.flush()
        os._exit(1)
    link.send(encode(number, info))
    link.flush()
    _serve(service, replies, arrived)


def _open(
    message: Load, progress: Callable[[float], None], flush: Callable[[], None], leaving: Leaving
) -> tuple[Channel, Info]:
    """Return the model, in the requested engine or the one that supports it, and its description.

    Raises WorkerError if the parent runs a version of chaski with different messages, and the errors of
    `chaski.load`.
    """
    if message.protocol != protocol():
        raise WorkerError(
            "another version of chaski was installed after this program started, and the two do not "
            f"understand each other; restart the program to load {message.model}"
        )
    options = dict(message.options)
    opened = OpenedModel.of(find_model(message.model))
    given = options.get("projector")
    projector = image_projector(opened.found) if given is None else found_projector(given)
    engine = choose_engine(opened.file, options.pop("engine", None) or opened.defaults.engine, projector)
    if engine == LLAMA_CPP:
        gap, reason = native_gap(opened.file), reason_for_llama_cpp(opened.file, projector)
        opened.file.close()
        options["projector"] = projector
        from chaski.runner.channels.llamacpp import LlamaCppChannel

        try:
            llama = LlamaCppChannel(message.model, options, flush, reason)
        except ModelError as error:
            raise ModelError(f"{error}. The native engine reports: {gap}" if gap else f"{error}") from None
        leaving.append(llama.close)
        return llama, llama.info
    model = load(opened.expecting_text(), progress=progress, engine=engine, **options)
    return EngineChannel(model, flush), describe(model)


def _receive(link: Link, arrived: Arrived, leaving: Leaving, replies: _Replies) -> None:
    """Receive calls until the stream ends, then end the process even during a computation, since no reader is
    left.
    """
    try:
        while messages := link.receive():
            for number, message in map(decode, messages):
                if replies.are_last:
                    continue  # the next process answers the calls that this one has not taken
                if isinstance(message, ModelCall):
                    link.send(encode(number, Received()))
                arrived.put((number, message))
            link.flush()
    except Exception:
        _log.exception("the parent cannot be understood")
    finally:
        for leave in leaving:
            leave()
        os._exit(0)


def _serve(service: Channel, replies: _Replies, arrived: Arrived) -> None:
    tasks: WeakValueDictionary[int, CallHandle] = WeakValueDictionary()
    while True:
        number, message = arrived.get()
        if isinstance(message, Cancel):
            task = tasks.get(number)
            if task is not None:
                task.cancel()
        else:
            assert isinstance(message, ModelCall), "a worker is sent calls only"
            tasks[number] = service.start(message, partial(replies.send, number))


class _Replies:
    """Sends replies. After a reply that reports a lost node or GPU, the process ends."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.are_last = False

    def send(self, number: int, reply: ReplyOrError) -> None:
        """Queue a reply for `flush`."""
        if not isinstance(reply, Exception):
            self._link.send(encode(number, reply))
            return
        self._link.send(encode(number, Failure.of(reply)))
        self.are_last = self.are_last or isinstance(reply, ClusterError | DeviceError)
        if not isinstance(reply, ChaskiError):
            _log.error("a call failed", exc_info=reply)

    def flush(self) -> None:
        """Send the noted messages."""
        are_last = self.are_last  # a copy: messages that another thread notes meanwhile are sent later
        self._link.flush()
        if are_last:
            os._exit(1)


class _Shares:
    """Sends the progress of loading, in at most a hundred messages."""

    def __init__(self, number: int, link: Link) -> None:
        self._number = number
        self._link = link
        self._percent = -1

    def __call__(self, share: float) -> None:
        if int(share * 100) != self._percent:
            self._percent = int(share * 100)
            self._link.send(encode(self._number, LoadProgress(share)))
            self._link.flush()


if __name__ == "__main__":
    main()
